"""Fourier transforms over the last one or two dims; inverse ones divide by their length."""

from __future__ import annotations

import torch

from torchair.core.kernel_params import Ints
from torchair.engine.registry import kernel, torch_kernels

torch_kernels(
    {"FFT": torch.fft.fft, "FFT2D": torch.fft.fft2, "IFFT": torch.fft.ifft, "IFFT2D": torch.fft.ifft2}
)


@kernel("RFFT")
def rfft(input, fft_length: Ints):
    """Return the first half of the spectrum of a real signal, cut or padded to `fft_length`."""
    return torch.fft.rfft(input, fft_length[0])


@kernel("IRFFT")
def irfft(x, fft_length: Ints):
    """Return the real signal of this length whose half spectrum is `x`."""
    return torch.fft.irfft(x, fft_length[0])
