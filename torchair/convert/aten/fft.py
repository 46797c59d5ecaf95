"""Fourier transforms.

The IR transforms the last one or two dims, and its inverse transforms divide by their length, so dims are
moved and factors corrected. torch decomposes `fftshift`, `hfft` and `stft`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchair import ge
from torchair.convert.base.operands import INT32, cast, dims_of, pack, size_of, sizes, torch_dtype
from torchair.convert.base.registry import converter
from torchair.core import dtypes
from torchair.ge.graph import Tensor
from torchair.ge.host import is_symbol

aten = torch.ops.aten

# ATen's codes of the divisor of a transform, as the power of its length.
_DIVISORS = {0: 0.0, 1: 0.5, 2: 1.0}
_COMPLEX_OF = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def why_not_half(self: Tensor, *_: Any, **__: Any) -> str | None:
    """Return why this dtype has no transform in the IR, such as half precision."""
    dtype = torch_dtype(self)
    known = (*_COMPLEX_OF, *_COMPLEX_OF.values())
    return None if dtype in known else f"the IR has no Fourier transform of {dtype}"


def transform(x: Tensor, dims: Sequence[int], forward: bool) -> Tensor:
    """Transform any dims, two at a time; the inverse divides by the length."""
    for start in range(0, len(dims), 2):
        some = dims[start : start + 2]
        one, two = (ge.FFT, ge.FFT2D) if forward else (ge.IFFT, ge.IFFT2D)
        x = _on_last(x, some, one if len(some) == 1 else two)
    return x


def _on_last(x: Tensor, dims: Sequence[int], op: Any) -> Tensor:
    """Apply `op` with these dims moved to the end, and move them back."""
    order = [dim for dim in range(x.rank) if dim not in dims] + list(dims)
    if order == list(range(x.rank)):
        return op(x)
    back = [order.index(dim) for dim in range(x.rank)]
    return ge.Transpose(op(ge.Transpose(x, order)), back)


def scaled(x: Tensor, lengths: Sequence[Any], power: float) -> Tensor:
    """Return x times the product of the lengths to this power; a length is an int or a rank-0 tensor."""
    if power == 0:
        return x
    if all(isinstance(length, int) for length in lengths):
        return ge.Mul(x, cast(math.prod(lengths) ** power, x.dtype))
    product = cast(1.0, torch.float64)
    for length in lengths:
        product = ge.Mul(product, cast(length, torch.float64))
    return ge.Mul(x, cast(ge.Pow(product, cast(power, torch.float64)), x.dtype))


def _lengths(x: Tensor, dims: Sequence[int]) -> list[Any]:
    return [size_of(x, dim) for dim in dims]


@converter(aten._fft_c2c.default, only=why_not_half)
def fft_c2c(self, dim, normalization, forward):
    """Transform complex to complex; `normalization` selects the divisor."""
    dims = dims_of(dim, self.rank)
    result = 0.0 if forward else 1.0
    return scaled(transform(self, dims, forward), _lengths(self, dims), result - _DIVISORS[normalization])


@converter(aten._fft_r2c.default, only=why_not_half)
def fft_r2c(self, dim, normalization, onesided):
    """Transform real to complex; a one-sided result has only the first half of the last dim's spectrum."""
    dims = dims_of(dim, self.rank)
    *rest, last = dims
    if onesided and torch_dtype(self) is torch.float32:
        length = cast(pack([size_of(self, last)]), INT32)
        y = _on_last(self, [last], lambda x: ge.RFFT(x, length))
    else:
        zero = ge.ZerosLike(self)
        y = transform(ge.Complex(self, zero, Tout=dtypes.to_ge(_COMPLEX_OF[torch_dtype(self)])), [last], True)
        y = _first_half(y, last) if onesided else y
    return scaled(transform(y, rest, True), _lengths(self, dims), -_DIVISORS[normalization])


def _first_half(y: Tensor, dim: int) -> Tensor:
    size = size_of(y, dim)
    if isinstance(size, int):
        half: Any = size // 2 + 1
    else:
        half = ge.Add(ge.FloorDiv(size, cast(2, size.dtype)), cast(1, size.dtype))
    return ge.StridedSliceV2(y, [0], pack([half]), [dim], [1])


def why_not_c2r(self: Tensor, dim: Any, normalization: int, last_dim_size: Any) -> str | None:
    """Return why the inverse transform is not supported, or None.

    IRFFT supports only float32. In float64 the spectrum is completed, for which its length must be known.
    """
    known = not isinstance(last_dim_size, Tensor) and not any(is_symbol(size) for size in sizes(self))
    if torch_dtype(self) is torch.complex128 and not known:
        return "the IR has no complex128 IRFFT, and the other half of the spectrum has a symbolic size"
    return why_not_half(self)


@converter(aten._fft_c2r.default, only=why_not_c2r)
def fft_c2r(self, dim, normalization, last_dim_size):
    """Transform half a spectrum to real numbers; the last dim gets the given length."""
    dims = dims_of(dim, self.rank)
    *rest, last = dims
    x = transform(self, rest, False)
    if torch_dtype(self) is torch.complex64:
        length = cast(pack([last_dim_size]), INT32)
        y = _on_last(x, [last], lambda part: ge.IRFFT(part, length))
    else:
        y = ge.Real(
            transform(_both_halves(x, last, last_dim_size), [last], False), Tout=ge.DataType.DT_DOUBLE
        )
    return scaled(y, [*_lengths(self, rest), last_dim_size], 1.0 - _DIVISORS[normalization])


def _both_halves(x: Tensor, dim: int, length: int) -> Tensor:
    """Return the whole spectrum of a real signal: the second half is the first one conjugated, backwards."""
    have = int(sizes(x)[dim])
    want = length // 2 + 1
    if have < want:
        missing = [want - have if place == dim else int(size) for place, size in enumerate(sizes(x))]
        x = ge.ConcatV2([x, ge.Const(torch.zeros(missing, dtype=torch.complex128))], dim, N=2)
    first = ge.StridedSliceV2(x, [0], [want], [dim], [1])
    second = ge.StridedSliceV2(x, [1], [(length + 1) // 2], [dim], [1])
    return ge.ConcatV2([first, ge.Conj(ge.ReverseV2(second, [dim]))], dim, N=2)


@converter(aten.fft_fftfreq.default)
def fft_fftfreq(n, d=1.0, *, dtype=None, layout=None, device=None, pin_memory=None, meta_outputs):
    """Return the frequencies of the bins: a constant."""
    return ge.Const(torch.fft.fftfreq(n, d, dtype=meta_outputs.torch_dtype), readable=False)


@converter(aten.fft_rfftfreq.default)
def fft_rfftfreq(n, d=1.0, *, dtype=None, layout=None, device=None, pin_memory=None, meta_outputs):
    """Return the frequencies of the bins of half a spectrum: a constant."""
    return ge.Const(torch.fft.rfftfreq(n, d, dtype=meta_outputs.torch_dtype), readable=False)
