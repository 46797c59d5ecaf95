"""Define number formats of the `npu` ops: type codes, 4-bit packing, 8- and 4-bit floats, quantization.

Definitions see one element per value: int4 as int8, fp4 as bfloat16 (`dtypes.SMALL`), hifloat8 and e8m0
scales as bytes. `store` and `load` convert values to these types and back. torch stores int4 as eight values
per int32 (or two per uint8), the lowest nibble first, and fp4 as two per uint8; `unpack` and `pack` convert
from and to these.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from torchair.core import dtypes

INT8, INT4, HIF8 = (dtypes.BY_NAME[name].runtime for name in ("INT8", "INT4", "HIFLOAT8"))
E5M2, E4M3 = (dtypes.BY_NAME[name].runtime for name in ("FLOAT8_E5M2", "FLOAT8_E4M3FN"))
E2M1, E1M2, E8M0 = (dtypes.BY_NAME[name].runtime for name in ("FLOAT4_E2M1", "FLOAT4_E1M2", "FLOAT8_E8M0"))
FP16, BF16, FP32, INT32, INT64, UINT8 = (
    dtypes.BY_NAME[name].runtime for name in ("FLOAT16", "BF16", "FLOAT", "INT32", "INT64", "UINT8")
)

# The largest value of each type, to which data are scaled.
LARGEST = {INT8: 127.0, INT4: 7.0, E4M3: 448.0, E5M2: 57344.0, HIF8: 32768.0, E2M1: 6.0, E1M2: 1.75}
# The exponent of that value, which determines a shared power of two.
TOP_EXPONENT = {E2M1: 2, E1M2: 0, E4M3: 8, E5M2: 15}
INTEGER_RANGE = {INT8: (-128, 127), INT4: (-8, 7), UINT8: (0, 255), INT32: (-(2**31), 2**31 - 1)}
FP4 = (E2M1, E1M2)

# torch's numbers of its dtypes, as used in int arguments of the library.
_TORCH_CODES = {
    0: "UINT8", 1: "INT8", 2: "INT16", 3: "INT32", 4: "INT64", 5: "FLOAT16", 6: "FLOAT", 7: "DOUBLE",
    8: "COMPLEX32", 9: "COMPLEX64", 10: "COMPLEX128", 11: "BOOL", 12: "INT8", 13: "UINT8", 14: "INT32",
    15: "BF16", 16: "INT4", 23: "FLOAT8_E5M2", 24: "FLOAT8_E4M3FN",
}  # fmt: skip
# Types without a torch number are this plus their IR number.
_OWN_CODES = 256


def ir_type(code: Any) -> Any:
    """Convert a type code of a torch argument (or a dtype) to the IR's type number; None stays None."""
    if code is None or isinstance(code, torch.dtype):
        return None if code is None else dtypes.to_ge(code)
    return code - _OWN_CODES if code >= _OWN_CODES else dtypes.BY_NAME[_TORCH_CODES[code]].runtime


def ir_type_or(default: int) -> Any:
    """Return `ir_type` with a default for None."""
    return lambda code: default if code is None else ir_type(code)


def wide(x: torch.Tensor) -> torch.Tensor:
    """Convert to the type of the arithmetic: float32, for doubles double."""
    return x if x.dtype == torch.float64 else x.float()


# Rounding


def rounded(x: torch.Tensor, mode: str = "rint") -> torch.Tensor:
    """Round to integers: rint half to even, round half away from zero, floor, ceil, trunc."""
    if mode == "round":
        return torch.sign(x) * torch.floor(x.abs() + 0.5)
    return {"rint": torch.round, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc}[mode](x)


def store(x: torch.Tensor, kind: int, mode: str = "rint") -> torch.Tensor:
    """Convert values to a stored type: rounded and saturated."""
    if kind in INTEGER_RANGE:
        return rounded(x, mode).clamp(*INTEGER_RANGE[kind]).to(dtypes.carrier(kind))
    if kind in (E4M3, E5M2) and mode == "rint":
        return x.clamp(-LARGEST[kind], LARGEST[kind]).to(dtypes.to_torch(kind))
    if kind in (E4M3, E5M2):
        return encode(x, kind, mode).view(dtypes.to_torch(kind))
    if kind in FP4:
        steps, exponent = _on_grid(_saturated(x, kind), kind, mode)
        # Adding zero drops the sign of zeros.
        return (steps * torch.exp2((exponent - GRIDS[kind].bits).float()) + 0.0).to(dtypes.carrier(kind))
    if kind == HIF8:
        return encode(x, kind, mode)
    return x.to(dtypes.to_torch(kind))


def load(x: torch.Tensor) -> torch.Tensor:
    """Return the values of a stored tensor, in float32; bytes are hifloat8."""
    return decode(x, HIF8) if x.dtype == torch.uint8 else wide(x)


# Types smaller than a byte

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by width in bytes."""


def _working(dtype: torch.dtype) -> torch.dtype:
    """Return an integer type for assembling words."""
    return torch.int64 if dtype.itemsize == 8 else torch.int32


def pack(x: torch.Tensor, kind: int, dtype: torch.dtype) -> torch.Tensor:
    """Pack 4-bit values into words of `dtype`, along the last dim, the first in the lowest bits."""
    count = 2 * dtype.itemsize
    patterns = (x if kind == INT4 else _fp4_patterns(x, kind)).to(_working(dtype)) & 15
    nibbles = patterns.unflatten(-1, (-1, count))
    places = 4 * torch.arange(count, dtype=nibbles.dtype, device=x.device)
    word = (nibbles << places).sum(-1, dtype=nibbles.dtype)
    return word.to(_WORDS[dtype.itemsize]).view(dtype)


def unpack(x: torch.Tensor, kind: int) -> torch.Tensor:
    """Invert `pack`: the last dim grows by the number of values in a word."""
    words, count = x.view(_WORDS[x.dtype.itemsize]), 2 * x.dtype.itemsize
    working = _working(x.dtype)
    places = 4 * torch.arange(count, dtype=working, device=x.device)
    words = words.to(working).unsqueeze(-1)
    if kind == INT4:
        top = 8 * working.itemsize - 4
        return ((words << (top - places)) >> top).to(dtypes.carrier(kind)).flatten(-2)
    return _fp4_values((words >> places) & 15, kind).flatten(-2)


_LINES = {E2M1: ((2.0, 0.0), (1.0, 2.0), (0.5, 4.0)), E1M2: ((4.0, 0.0),)}
"""The pattern of an fp4 magnitude is the least of slope · magnitude + offset, one line for each exponent."""


def _fp4_patterns(x: torch.Tensor, kind: int) -> torch.Tensor:
    """Return the bit patterns of values that are fp4 numbers."""
    size = x.float().abs()
    patterns = functools.reduce(torch.minimum, (size * slope + offset for slope, offset in _LINES[kind]))
    return torch.where(torch.signbit(x), patterns + 8, patterns).to(torch.int32)


def _fp4_values(patterns: torch.Tensor, kind: int) -> torch.Tensor:
    """Return the values of fp4 bit patterns, with signed zeros."""
    size = (patterns & 7).to(dtypes.carrier(kind))
    values = functools.reduce(torch.maximum, ((size - offset) / slope for slope, offset in _LINES[kind]))
    return torch.where(patterns > 7, -values, values)


# Small floats by arithmetic on the device: no table has to be copied there while a graph is recorded.


class Grid(NamedTuple):
    """Number of fraction bits, and the exponent below which values are evenly spaced."""

    bits: int
    lowest: int


GRIDS = {E2M1: Grid(1, 0), E1M2: Grid(2, 0), E4M3: Grid(3, -6), E5M2: Grid(2, -14)}
# HiFloat8 has subnormal powers of two down to this exponent; pattern p is the exponent p - 23.
_HIF8_LOWEST, _HIF8_BARE = -22, -23


def exponent_of(x: torch.Tensor) -> torch.Tensor:
    """Return floor(log2|x|) of float32 numbers."""
    return _biased_exponent(x.abs()) - 127


def encode(x: torch.Tensor, kind: int, mode: str = "rint") -> torch.Tensor:
    """Return the bit patterns (one per byte) of the nearest values; larger values saturate."""
    x = _saturated(x, kind)
    if kind == HIF8:
        patterns, sign = _encode_hif8(x, _mode(mode)), 128
    else:
        grid, sign = GRIDS[kind], 8 if kind in FP4 else 128
        steps, exponent = _on_grid(x, kind, mode)
        # An additional step carries into the exponent, which is correct.
        patterns = ((exponent - grid.lowest) << grid.bits) + steps.abs().to(torch.int32)
    # The pattern of a negative zero is the NaN of HiFloat8.
    return torch.where((x < 0) & (patterns > 0), patterns + sign, patterns).to(torch.uint8)


def _saturated(x: torch.Tensor, kind: int) -> torch.Tensor:
    return x.float().clamp(-LARGEST[kind], LARGEST[kind]).contiguous()


def _mode(mode: str) -> str:
    return "round" if mode == "hybrid" else mode


def _on_grid(x: torch.Tensor, kind: int, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (steps, exponent) of the nearest value steps · 2^(exponent - bits)."""
    grid = GRIDS[kind]
    exponent = exponent_of(x).clamp(min=grid.lowest)
    return rounded(x * torch.exp2((grid.bits - exponent).float()), _mode(mode)), exponent


def decode(x: torch.Tensor, kind: int) -> torch.Tensor:
    """Return the values of bit patterns, one per byte."""
    code = x.to(torch.int32)
    sign = 8 if kind in FP4 else 128
    size = code & (sign - 1)
    if kind == HIF8:
        value = torch.where(code == sign, float("nan"), _decode_hif8(size))
    else:
        grid = GRIDS[kind]
        exponent, mantissa = size >> grid.bits, size & ((1 << grid.bits) - 1)
        whole = torch.where(exponent > 0, mantissa + (1 << grid.bits), mantissa)
        value = whole * torch.exp2((exponent.clamp(min=1) - 1 + grid.lowest - grid.bits).float())
    return torch.where(code >= sign, -value, value)


def _hif8_bits(exponent: torch.Tensor) -> torch.Tensor:
    """Return the number of fraction bits, which decreases with the distance of the exponent from 0."""
    far = exponent.abs()
    normal = 3 - (far >= 4).to(torch.int32) - (far >= 8).to(torch.int32)
    return torch.where(exponent < -15, 0, normal)


def _encode_hif8(x: torch.Tensor, mode: str) -> torch.Tensor:
    """Encode HiFloat8. A prefix defines the number of exponent bits: 0001 none, 001 one, 01 two, 10 three, 11
    four. The first of them is the sign; the leading one of the magnitude is omitted.
    """
    exponent = exponent_of(x).clamp(min=_HIF8_LOWEST)
    step = torch.exp2((exponent - _hif8_bits(exponent)).float())
    value = (rounded(x / step, mode) * step).abs().contiguous()
    # Rounding may have reached the next power of two.
    exponent = exponent_of(value).clamp(min=_HIF8_LOWEST)
    bits, far = _hif8_bits(exponent), exponent.abs()
    mantissa = ((value * torch.exp2(-exponent.float()) - 1) * torch.exp2(bits.float())).to(torch.int32)
    down = (exponent < 0).to(torch.int32)
    pattern = 8 + mantissa
    pattern = torch.where(far == 1, 16 + (down << 3) + mantissa, pattern)
    for width, prefix in ((2, 32), (3, 64), (4, 96)):
        first = 1 << (width - 1)
        found = prefix + (down << 4) + ((far - first) << (5 - width)) + mantissa
        pattern = torch.where(far >= first, found, pattern)
    pattern = torch.where(exponent < -15, exponent - _HIF8_BARE, pattern)
    return torch.where(value == 0, 0, pattern)


def _decode_hif8(size: torch.Tensor) -> torch.Tensor:
    width = torch.zeros_like(size)
    for prefix in (16, 32, 64, 96):
        width = width + (size >= prefix).to(torch.int32)
    bits = torch.where(width >= 2, 5 - width, 3)
    rest = size & torch.where(width >= 2, 31, torch.where(width == 1, 15, 7))
    field, mantissa = rest >> bits, rest & ((1 << bits) - 1)
    first = (1 << width) >> 1
    far = first | (field & (first - (width > 0).to(torch.int32)))
    exponent = torch.where((field & first) > 0, -far, far)
    value = (1 + mantissa * torch.exp2(-bits.float())) * torch.exp2(exponent.float())
    value = torch.where(value > LARGEST[HIF8], float("inf"), value)
    bare = torch.exp2((size + _HIF8_BARE).float())
    return torch.where(size == 0, 0.0, torch.where(size < 8, bare, value))


# Quantization


def largest(kind: int, given: float = 0.0) -> float:
    """Return the value to which the largest value is scaled: the maximum of the type unless one is given."""
    return given if given > 0 else LARGEST[kind]


def divided(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return x / scale, 0 where the scale is 0."""
    return torch.where(scale == 0, torch.zeros_like(x), x / torch.where(scale == 0, 1.0, scale))


def dynamic(
    x: torch.Tensor, kind: int, dims: Any = -1, maximum: float = 0.0, mode: str = "rint"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize symmetrically: (stored values, scale without `dims`), x ≈ values · scale, scale =
    max|x| / largest.
    """
    scale = wide(x).abs().amax(dims, keepdim=True) / largest(kind, maximum)
    return store(divided(wide(x), scale), kind, mode), _squeezed(scale, dims)


def asymmetric(x: torch.Tensor, kind: int, dims: Any = -1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (stored values, scale, offset), x ≈ (values - offset) · scale, covering the range of x."""
    low, high = INTEGER_RANGE[kind]
    top = wide(x).amax(dims, keepdim=True)
    scale = (top - wide(x).amin(dims, keepdim=True)) / (high - low)
    offset = high - divided(top, scale)
    stored = store(divided(wide(x), scale) + offset, kind)
    return stored, _squeezed(scale, dims), _squeezed(offset, dims)


def static(
    x: torch.Tensor,
    scale: Any,
    offset: torch.Tensor | None,
    kind: int,
    *,
    divide: bool = False,
    mode: str = "rint",
) -> torch.Tensor:
    """Return x · scale + offset, or x / scale + offset, in the stored type."""
    scaled = wide(x) / wide(scale) if divide else wide(x) * wide(scale)
    return store(scaled if offset is None else scaled + wide(offset), kind, mode)


def _squeezed(scale: torch.Tensor, dims: Any) -> torch.Tensor:
    listed = [dims] if isinstance(dims, int) else list(dims)
    return scale.squeeze(listed)


# Microscaling: one power of two per block


def shared_exponent(peak: torch.Tensor, kind: int, scale_alg: int = 0, maximum: float = 0.0) -> torch.Tensor:
    """Return the biased exponent (e8m0 byte, as int32) of blocks with the largest magnitude `peak`."""
    if scale_alg == 0:
        found = _biased_exponent(peak) - TOP_EXPONENT[kind]
    else:
        quotient = peak / largest(kind, maximum)
        has_fraction = (quotient.view(torch.int32) & 0x7FFFFF) != 0
        found = _biased_exponent(quotient) + has_fraction.to(torch.int32)
    return torch.where(peak == 0, 0, found.clamp(0, 254))


def _biased_exponent(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) >> 23) & 0xFF


def power_of_two(byte: torch.Tensor) -> torch.Tensor:
    """Return 2^(byte - 127), the value of an e8m0 scale."""
    return torch.exp2(byte.float() - 127)


def blocked(x: torch.Tensor, block: int) -> torch.Tensor:
    """Split the last dim into blocks, the last one padded with zeros: [..., blocks, block]."""
    return F.pad(x, (0, -x.shape[-1] % block)).unflatten(-1, (-1, block))


def paired(scale: torch.Tensor, axis: int) -> torch.Tensor:
    """Return scales of blocks as pairs of bytes: `axis` counts pairs, a last dim of 2 the members."""
    bytes_ = F.pad(scale, (0, scale.shape[-1] % 2)).to(torch.uint8)
    return bytes_.unflatten(-1, (-1, 2)).movedim(-2, axis)


def mx(
    x: torch.Tensor,
    kind: int,
    axis: int = -1,
    *,
    block: int = 32,
    scale_alg: int = 0,
    maximum: float = 0.0,
    mode: str = "rint",
    lowest: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (stored values, paired scales) with one power of two per `block` values along `axis`."""
    axis = axis % x.ndim
    moved = x.float().movedim(axis, -1)
    blocks = blocked(moved, block)
    peak = blocks.abs().amax(-1).clamp(min=lowest)
    scale = shared_exponent(peak, kind, scale_alg, maximum)
    values = (blocks * torch.exp2(127.0 - scale.float()).unsqueeze(-1)).flatten(-2)
    values = values[..., : moved.shape[-1]].movedim(-1, axis)
    return store(values, kind, mode), paired(scale, axis)


def unpaired(mxscale: torch.Tensor, axis: int, length: Any, block: int = 32) -> torch.Tensor:
    """Return the scale of each of `length` values along `axis` from paired bytes."""
    axis = axis % (mxscale.ndim - 1)
    bytes_ = mxscale.view(torch.uint8) if mxscale.dtype != torch.uint8 else mxscale
    flat = bytes_.movedim(axis, -2).flatten(-2).repeat_interleave(block, -1)[..., :length]
    return power_of_two(flat).movedim(-1, axis)
