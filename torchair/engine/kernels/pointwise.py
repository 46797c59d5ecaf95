"""Elementwise arithmetic. Operands have one dtype."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchair.core.kernel_params import Operand
from torchair.engine.registry import kernel, torch_kernels

torch_kernels({
    "Abs": torch.abs, "Neg": torch.neg, "Sign": torch.sgn, "Reciprocal": torch.reciprocal,
    "Ceil": torch.ceil, "Floor": torch.floor, "Round": torch.round, "Rint": torch.round,
    "Trunc": torch.trunc, "Sqrt": torch.sqrt, "Rsqrt": torch.rsqrt, "Square": torch.square,
    "Expm1": torch.expm1, "Log1p": torch.log1p, "Sin": torch.sin, "Cos": torch.cos, "Tan": torch.tan,
    "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan, "Sinh": torch.sinh, "Cosh": torch.cosh,
    "Tanh": torch.tanh, "Asinh": torch.asinh, "Acosh": torch.acosh, "Atanh": torch.atanh,
    "Erf": torch.erf, "Erfc": torch.erfc, "Erfinv": torch.erfinv, "Atan2": torch.atan2,
    "NextAfter": torch.nextafter, "Igamma": torch.special.gammainc, "Igammac": torch.special.gammaincc,
    "BesselI0e": torch.special.i0e, "BesselI1e": torch.special.i1e, "Ndtri": torch.special.ndtri,
    "Zeta": torch.special.zeta, "Gcd": torch.gcd, "Inv": torch.reciprocal, "Xlog1py": torch.special.xlog1py,
    "SquaredDifference": lambda x1, x2: (x1 - x2).square(), "FusedMulAdd": lambda x1, x2, x3: x1 * x2 + x3,
    "FusedMulAddAdd": lambda x1, x2, x3, x4: x1 * x2 + x3 + x4,
    "MulNoNan": lambda x1, x2: torch.where(x2 == 0, 0, x1 * x2),
    "Xdivy": lambda x1, x2: torch.where(x1 == 0, 0, x1 / x2), "SqrtGrad": lambda y, dy: dy * 0.5 / y,
    "RsqrtGrad": lambda y, dy: dy * -0.5 * y * y * y, "ReciprocalGrad": lambda y, dy: -dy * y * y,
    "InvGrad": lambda y, dy: -dy * y * y,
})  # fmt: skip
torch_kernels({
    "Add": torch.add, "AddV2": torch.add, "Sub": torch.sub, "Mul": torch.mul, "RealDiv": torch.true_divide,
    "FloorMod": torch.remainder, "Mod": torch.fmod, "TruncateMod": torch.fmod, "Pow": torch.pow,
    "Xlogy": torch.xlogy,
}, numbers=True)  # fmt: skip


@kernel("FloorDiv")
def floor_div(x1, x2: Operand):
    """Return the quotient rounded down."""
    return torch.div(x1, x2, rounding_mode="floor")


@kernel("TruncateDiv")
def truncate_div(x1, x2: Operand):
    """Return the quotient rounded toward zero."""
    return torch.div(x1, x2, rounding_mode="trunc")


@kernel("Div")
def div(x1, x2: Operand):
    """Divide: floats exactly, integers toward zero."""
    mode = None if x1.is_floating_point() or x1.is_complex() else "trunc"
    return torch.div(x1, x2, rounding_mode=mode)


@kernel("Maximum")
def maximum(x1, x2: Operand):
    """Return the larger value; NaN wins."""
    return torch.maximum(x1, x2) if isinstance(x2, torch.Tensor) else torch.clamp_min(x1, x2)


@kernel("Minimum")
def minimum(x1, x2: Operand):
    """Return the smaller value; NaN wins."""
    return torch.minimum(x1, x2) if isinstance(x2, torch.Tensor) else torch.clamp_max(x1, x2)


@kernel("Exp")
def exp(x, *, base, scale, shift):
    """base ** (scale * x + shift); base -1 is e."""
    power = _affine(x, scale, shift)
    if base == -1:
        return torch.exp(power)
    return torch.exp2(power) if base == 2 else torch.pow(base, power)


@kernel("Log")
def log(x, *, base, scale, shift):
    """Return the logarithm of scale * x + shift; base -1 is e."""
    number = _affine(x, scale, shift)
    named = {-1: torch.log, 2: torch.log2, 10: torch.log10}.get(base)
    return named(number) if named else torch.log(number) / math.log(base)


def _affine(x: torch.Tensor, scale: float, shift: float) -> torch.Tensor:
    x = x if scale == 1 else x * scale
    return x if shift == 0 else x + shift


@kernel("Muls")
def muls(x, *, value):
    """Return the product with the unrounded number."""
    return x * value


@kernel("Adds")
def adds(x, *, value):
    """Return the sum with the unrounded number."""
    return x + value


@kernel("Axpy")
def axpy(x1, x2, *, alpha):
    """x1 + alpha * x2."""
    return torch.add(x1, x2, alpha=alpha)


@kernel("AxpyV2")
def axpy_v2(x1, x2, alpha: Operand):
    """x1 + alpha * x2."""
    return x1 + alpha * x2 if isinstance(alpha, torch.Tensor) else torch.add(x1, x2, alpha=alpha)


@kernel("Sxpy")
def sxpy(x1, x2, alpha: Operand):
    """x1 - alpha * x2."""
    if alpha is None:
        return x1 - x2
    return x1 - alpha * x2 if isinstance(alpha, torch.Tensor) else torch.sub(x1, x2, alpha=alpha)


@kernel("Addcmul")
def addcmul(input_data, x1, x2, value: Operand):
    """input + value * x1 * x2."""
    if isinstance(value, torch.Tensor):
        return input_data + value * x1 * x2
    return torch.addcmul(input_data, x1, x2, value=value)


@kernel("Addcdiv")
def addcdiv(input_data, x1, x2, value: Operand):
    """input + value * x1 / x2."""
    if isinstance(value, torch.Tensor):
        return input_data + value * x1 / x2
    return torch.addcdiv(input_data, x1, x2, value=value)


@kernel("Lerp")
def lerp(start, end, weight: Operand):
    """start + weight * (end - start)."""
    return torch.lerp(start, end, weight)


@kernel("ClipByValueV2")
def clip_by_value(x, clip_value_min: Operand, clip_value_max: Operand):
    """Return min(max(x, lo), hi): hi where lo > hi; NaN stays. A bound that every value satisfies is
    dropped.
    """
    low, high = _bound(clip_value_min, -math.inf), _bound(clip_value_max, math.inf)
    if isinstance(low, torch.Tensor) and high is not None and not isinstance(high, torch.Tensor):
        return torch.clamp_max(torch.maximum(x, low), high)
    if isinstance(high, torch.Tensor) and low is not None and not isinstance(low, torch.Tensor):
        return torch.minimum(torch.clamp_min(x, low), high)
    return x if low is None and high is None else torch.clamp(x, low, high)


def _bound(bound: Operand, nothing: float) -> Any:
    """Return None for a bound that every value satisfies."""
    return None if isinstance(bound, float) and bound == nothing else bound


@kernel("NanToNum")
def nan_to_num(x, *, nan, posinf, neginf):
    """Replace NaN and the infinities by finite numbers."""
    return torch.nan_to_num(x, nan, posinf, neginf)


@kernel("AddN", "AccumulateNV2")
def add_n(x, *, N):
    """Return the sum of several tensors."""
    total = x[0]
    for tensor in x[1:]:
        total = total + tensor
    return total


@kernel("Complex")
def complex_(real, imag, *, Tout):
    """Return a complex number from its parts."""
    return torch.complex(real, imag)


@kernel("Real")
def real(input, *, Tout):
    """Return the real part."""
    return torch.real(input)


@kernel("Imag")
def imag(input, *, Tout):
    """Return the imaginary part."""
    return torch.imag(input)


@kernel("Angle")
def angle(input, *, Tout):
    """Return the argument of a complex number."""
    return torch.angle(input)


@kernel("ComplexAbs")
def complex_abs(x, *, Tout):
    """Return the magnitude of a complex number."""
    return torch.abs(x)


@kernel("Conj")
def conj(input):
    """Return the conjugate."""
    return torch.conj_physical(input)
