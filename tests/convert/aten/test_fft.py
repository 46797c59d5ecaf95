"""Fourier transforms against eager: every norm, dims in any place and number, odd and even lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.convert.harness import check, converted

FORMS = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
NORMS = pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])


def types(fn: Any, *args: Any) -> set[str]:
    return {op.type for op in converted(fn, args)[0].ops}


@FORMS
@NORMS
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_fft_of_one_dim_equals_eager(name: str, norm: str, dynamic: bool) -> None:
    fn = getattr(torch.fft, name)
    real = name in ("rfft", "ihfft")
    x = torch.randn(3, 6) if real else torch.randn(3, 6, dtype=torch.complex64)
    check(lambda x: fn(x, norm=norm), x, dynamic=dynamic)
    check(lambda x: fn(x, dim=0, norm=norm), x, dynamic=dynamic)


@FORMS
@pytest.mark.parametrize("name", ["fft2", "ifft2", "fftn", "ifftn", "rfft2", "irfft2", "rfftn", "irfftn"])
def test_fft_of_several_dims_equals_eager(name: str, dynamic: bool) -> None:
    fn = getattr(torch.fft, name)
    x = torch.randn(2, 3, 4, 5) if name.startswith("r") else torch.randn(2, 3, 4, 5, dtype=torch.complex64)
    check(fn, x, dynamic=dynamic)
    check(lambda x: fn(x, dim=(2, 0), norm="ortho"), x, dynamic=dynamic)


@pytest.mark.parametrize("n", [1, 4, 5, 9])
@pytest.mark.parametrize("name", ["fft", "rfft", "irfft", "hfft"])
@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
def test_cut_and_padded(name: str, n: int, double: bool) -> None:
    dtype = torch.float64 if double else torch.float32
    x = torch.randn(2, 6, dtype=dtype)
    x = x if name == "rfft" else torch.complex(x, torch.randn(2, 6, dtype=dtype))
    check(lambda x: getattr(torch.fft, name)(x, n), x)


def test_a_real_signal_may_have_its_whole_spectrum() -> None:
    check(lambda x: torch.fft.fft(x), torch.randn(2, 5))
    check(lambda x: torch.fft.fftn(x), torch.randn(2, 3, 4, dtype=torch.float64))
    check(lambda x: torch.fft.ifft(x), torch.randn(2, 5), dynamic=True)


@FORMS
def test_fft_shift_equals_eager(dynamic: bool) -> None:
    x = torch.randn(4, 5)
    allow = ["aten.roll.default"] if dynamic else []  # half of a symbolic size is no constant shift
    check(lambda x: torch.fft.fftshift(x), x, dynamic=dynamic, allow=allow)
    check(lambda x: torch.fft.ifftshift(x, dim=1), x, dynamic=dynamic, allow=allow)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_fft_frequencies_equal_eager(n: int) -> None:
    check(lambda x: x * torch.fft.fftfreq(n, 0.5), torch.ones(1))
    check(lambda x: x * torch.fft.rfftfreq(n, 0.5), torch.ones(1))


@pytest.mark.parametrize("center", [False, True])
def test_short_time_fft_equals_eager(center: bool) -> None:
    x, window = torch.randn(2, 32), torch.hann_window(8)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 8, 4, window=w, center=center, return_complex=True)

    # torch's composite ends in a transpose in place, which functionalisation outside of AOTAutograd leaves.
    check(fn, x, window, allow=["aten.transpose_.default"])


def test_true_ir_ops() -> None:
    c = torch.randn(3, 4, dtype=torch.complex64)
    assert {"FFT"} <= types(torch.fft.fft, c)
    assert {"IFFT2D"} <= types(torch.fft.ifft2, c)
    assert {"RFFT"} <= types(torch.fft.rfft, torch.randn(3, 4))
    assert {"IRFFT"} <= types(torch.fft.irfft, c)
    assert {"IFFT"} <= types(torch.fft.irfft, c.to(torch.complex128)), "IRFFT is float32 only"


def test_the_other_half_of_a_symbolic_spectrum_is_not_made_up() -> None:
    x = torch.randn(2, 5, dtype=torch.complex128)
    report = check(torch.fft.irfft, x, dynamic=True, allow=["aten._fft_c2r.default"])
    assert "no complex128 IRFFT" in report.fallbacks[0].why
