"""Elementwise arithmetic of ATen."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import cast, like, promote, torch_dtype, working_dtype
from torchair.convert.base.registry import converter, map_one_to_one
from torchair.ge.graph import Tensor

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
# AxpyV2 computes in these types; other types multiply first.
_AXPY_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32)

map_one_to_one({
    aten.acos.default: ge.Acos, aten.acosh.default: ge.Acosh, aten.asin.default: ge.Asin,
    aten.asinh.default: ge.Asinh, aten.atan.default: ge.Atan, aten.atanh.default: ge.Atanh,
    aten.cos.default: ge.Cos, aten.cosh.default: ge.Cosh, aten.sin.default: ge.Sin,
    aten.sinh.default: ge.Sinh, aten.tan.default: ge.Tan, aten.tanh.default: ge.Tanh,
    aten.erf.default: ge.Erf, aten.erfc.default: ge.Erfc, aten.erfinv.default: ge.Erfinv,
    aten.exp.default: ge.Exp, aten.expm1.default: ge.Expm1, aten.log.default: ge.Log,
    aten.log1p.default: ge.Log1p, aten.neg.default: ge.Neg, aten.reciprocal.default: ge.Reciprocal,
    aten.rsqrt.default: ge.Rsqrt, aten.sqrt.default: ge.Sqrt, aten.square.default: ge.Square,
    aten.special_i0e.default: ge.BesselI0e, aten.special_i1e.default: ge.BesselI1e,
    aten.special_ndtri.default: ge.Ndtri, aten.atan2.default: ge.Atan2,
    aten.nextafter.default: ge.NextAfter, aten.igamma.default: ge.Igamma,
    aten.igammac.default: ge.Igammac, aten.remainder.Tensor: ge.FloorMod,
    aten.remainder.Scalar: ge.FloorMod, aten.remainder.Scalar_Tensor: ge.FloorMod,
    aten.fmod.Tensor: ge.TruncateMod, aten.fmod.Scalar: ge.TruncateMod, aten.pow.Tensor_Tensor: ge.Pow,
    aten.pow.Scalar: ge.Pow, aten.xlogy.Tensor: ge.Xlogy, aten.xlogy.Scalar_Other: ge.Xlogy,
    aten.xlogy.Scalar_Self: ge.Xlogy, aten.gcd.default: ge.Gcd,
}, promoted=True)  # fmt: skip


def _with_base(base):
    """Create a converter for Exp or Log with a base other than e."""

    def run(self, *, meta_outputs):
        op, number = base
        return op(cast(self, meta_outputs.dtype), base=number)

    return run


for _target, _base in {
    aten.exp2.default: (ge.Exp, 2.0),
    aten.log2.default: (ge.Log, 2.0),
    aten.log10.default: (ge.Log, 10.0),
}.items():
    converter(_target)(_with_base(_base))


def _rounding(op):
    """Create a converter for rounding; integers need none."""

    def run(self):
        return op(self) if torch_dtype(self).is_floating_point else ge.TensorMove(self)

    return run


for _target, _op in {
    aten.ceil.default: ge.Ceil,
    aten.floor.default: ge.Floor,
    aten.round.default: ge.Round,
    aten.trunc.default: ge.Trunc,
}.items():
    converter(_target)(_rounding(_op))


@converter(aten.abs.default)
def abs_(self, *, meta_outputs):
    """Return the magnitude."""
    dtype = torch_dtype(self)
    if dtype.is_complex:
        return ge.ComplexAbs(self, Tout=meta_outputs.dtype)
    return ge.TensorMove(self) if dtype in (torch.uint8, torch.bool) else ge.Abs(self)


@converter(aten.sign.default, aten.sgn.default)
def sign(self):
    """Return -1, 0 or 1; a complex number is divided by its magnitude."""
    return ge.TensorMove(self) if torch_dtype(self) is torch.bool else ge.Sign(self)


@converter(aten.add.Tensor, aten.add.Scalar)
def add(self, other, alpha=1, *, meta_outputs):
    """Return self + alpha * other, computed in the dtype of the result; for bools the logical or."""
    if _shows_rounding(other, meta_outputs) and not isinstance(alpha, Tensor):
        return ge.Adds(cast(self, meta_outputs.dtype), value=float(alpha * other))
    self, other = promote(self, other, to=meta_outputs.dtype)
    if _is_one(alpha):
        return (ge.LogicalOr if meta_outputs.torch_dtype is torch.bool else ge.Add)(self, other)
    return _axpy(self, other, alpha, meta_outputs)


@converter(aten.sub.Tensor, aten.sub.Scalar)
def sub(self, other, alpha=1, *, meta_outputs):
    """self - alpha * other."""
    if _shows_rounding(other, meta_outputs):
        return add(self, other, _negative(alpha), meta_outputs=meta_outputs)
    self, other = promote(self, other, to=meta_outputs.dtype)
    return ge.Sub(self, other) if _is_one(alpha) else _axpy(self, other, _negative(alpha), meta_outputs)


@converter(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(self, other, alpha=1, *, meta_outputs):
    """other - alpha * self."""
    return sub(other, self, alpha, meta_outputs=meta_outputs)


def _shows_rounding(number, meta) -> bool:
    """Return whether 16 bits do not hold this number. CPUs round it before the addition, other devices do
    not.
    """
    if not isinstance(number, int | float) or meta.device.type == "cpu":
        return False
    return working_dtype(meta.torch_dtype, number) is not meta.torch_dtype


def _axpy(self, other, alpha, meta):
    """self + alpha * other."""
    factor = cast(alpha, meta.dtype)
    if meta.torch_dtype in _AXPY_TYPES:
        return ge.AxpyV2(self, other, factor)
    return ge.Add(self, ge.Mul(other, factor))


def _is_one(alpha) -> bool:
    return not isinstance(alpha, Tensor) and alpha == 1


def _negative(alpha):
    return ge.Neg(alpha) if isinstance(alpha, Tensor) else -alpha


@converter(aten.mul.Tensor, aten.mul.Scalar)
def mul(self, other, *, meta_outputs):
    """Return self * other; for bools the logical and.

    ATen multiplies 16-bit floats by the unrounded number, as Muls does.
    """
    dtype = meta_outputs.torch_dtype
    if dtype in HALVES and isinstance(other, int | float):
        return ge.Muls(cast(self, dtype), value=float(other))
    return _unrounded(ge.LogicalAnd if dtype is torch.bool else ge.Mul, self, other, meta_outputs)


def _unrounded(op, self, other, meta):
    """Apply an op for which ATen does not round numbers to 16 bits; where that matters, use 32 bits."""
    dtype = working_dtype(meta.torch_dtype, self, other)
    return cast(op(*promote(self, other, to=dtype)), meta.dtype)


def _division(op):
    """Create a converter for a quotient in the dtype of the result."""

    def run(self, other, *, meta_outputs):
        return _unrounded(op, self, other, meta_outputs)

    return run


converter(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar)(
    _division(ge.RealDiv)
)
converter(aten.floor_divide.default, aten.floor_divide.Scalar)(_division(ge.FloorDiv))


def _extremum(op, on_bool):
    """Create a converter for the extremum of two tensors; NaN wins."""

    def run(self, other, *, meta_outputs):
        chosen = on_bool if meta_outputs.torch_dtype is torch.bool else op
        return chosen(*promote(self, other, to=meta_outputs.dtype))

    return run


converter(aten.maximum.default)(_extremum(ge.Maximum, ge.LogicalOr))
converter(aten.minimum.default)(_extremum(ge.Minimum, ge.LogicalAnd))


@converter(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(self, other, *, rounding_mode, meta_outputs):
    """Return the quotient: exact, rounded down or rounded toward zero."""
    op = {None: ge.RealDiv, "floor": ge.FloorDiv, "trunc": ge.TruncateDiv}[rounding_mode]
    return _unrounded(op, self, other, meta_outputs)


@converter(aten.pow.Tensor_Scalar)
def pow_scalar(self, exponent, *, meta_outputs):
    """Return self ** exponent; the common powers have their own ops."""
    base = cast(self, meta_outputs.dtype)
    if isinstance(exponent, Tensor):
        return ge.Pow(base, like(exponent, base))
    if exponent == 2:
        return ge.Square(base)
    if meta_outputs.torch_dtype.is_floating_point and exponent in _POWERS:
        return _POWERS[exponent](base)
    return ge.Pow(base, like(exponent, base))


_POWERS = {0.5: ge.Sqrt, -0.5: ge.Rsqrt, -1: ge.Reciprocal, 1: ge.TensorMove}


@converter(aten.frac.default)
def frac(self):
    """Return the fractional part."""
    return ge.Sub(self, ge.Trunc(self))


@converter(aten.hypot.default)
def hypot(self, other, *, meta_outputs):
    """Return sqrt(a² + b²), in at least float32 so that 16-bit squares do not overflow. Infinity wins over
    NaN.
    """
    wide = torch.float32 if meta_outputs.torch_dtype in HALVES else meta_outputs.torch_dtype
    a, b = (ge.Abs(operand) for operand in promote(self, other, to=wide))
    large, small = ge.Maximum(a, b), ge.Minimum(a, b)
    ratio = ge.RealDiv(small, large)
    length = ge.Mul(large, ge.Sqrt(ge.Add(ge.Square(ratio), like(1.0, large))))
    length = ge.SelectV2(ge.Equal(small, like(0.0, small)), large, length)
    infinity = like(float("inf"), large)
    is_infinite = ge.LogicalOr(ge.Equal(a, infinity), ge.Equal(b, infinity))
    return cast(ge.SelectV2(is_infinite, infinity, length), meta_outputs.dtype)


@converter(aten.addcmul.default)
def addcmul(self, tensor1, tensor2, *, value=1, meta_outputs):
    """self + value * tensor1 * tensor2."""
    dtype = working_dtype(meta_outputs.torch_dtype, value)
    return cast(ge.Addcmul(*promote(self, tensor1, tensor2, value, to=dtype)), meta_outputs.dtype)


@converter(aten.addcdiv.default)
def addcdiv(self, tensor1, tensor2, *, value=1, meta_outputs):
    """self + value * tensor1 / tensor2."""
    dtype = working_dtype(meta_outputs.torch_dtype, value)
    return cast(ge.Addcdiv(*promote(self, tensor1, tensor2, value, to=dtype)), meta_outputs.dtype)


@converter(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(self, end, weight, *, meta_outputs):
    """self + weight * (end - self)."""
    dtype = working_dtype(meta_outputs.torch_dtype, weight)
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise NotImplementedError("Lerp computes in floats of up to 32 bits")
    return cast(ge.Lerp(*promote(self, end, weight, to=dtype)), meta_outputs.dtype)


@converter(aten.clamp.default, aten.clamp.Tensor)
def clamp(self, min=None, max=None, *, meta_outputs):
    """Clamp between two bounds, one of which may be missing."""
    if meta_outputs.torch_dtype is torch.bool:
        raised = self if min is None else ge.LogicalOr(self, min)
        return ge.Identity(raised) if max is None else ge.LogicalAnd(raised, max)
    low, high = _limits(meta_outputs.torch_dtype)
    bounds = (low if min is None else min, high if max is None else max)
    return ge.ClipByValueV2(*promote(self, *bounds, to=meta_outputs.dtype))


@converter(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(self, min, *, meta_outputs):
    """Clamp from below."""
    return clamp(self, min, None, meta_outputs=meta_outputs)


@converter(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(self, max, *, meta_outputs):
    """Clamp from above."""
    return clamp(self, None, max, meta_outputs=meta_outputs)


def _limits(dtype):
    """Return bounds that every value of a dtype satisfies."""
    if dtype.is_floating_point:
        return float("-inf"), float("inf")
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


@converter(aten.nan_to_num.default)
def nan_to_num(self, nan=None, posinf=None, neginf=None):
    """Replace NaN and the infinities by finite numbers: by default 0 and the largest ones."""
    dtype = torch_dtype(self)
    if not dtype.is_floating_point:
        return ge.TensorMove(self)
    if dtype is torch.float64:
        raise NotImplementedError("the attributes of NanToNum are 32-bit floats")
    limits = torch.finfo(dtype)
    return ge.NanToNum(
        self,
        nan=0.0 if nan is None else float(nan),
        posinf=limits.max if posinf is None else float(posinf),
        neginf=limits.min if neginf is None else float(neginf),
    )


@converter(aten.real.default)
def real(self, *, meta_outputs):
    """Return the real part."""
    return ge.Real(self, Tout=meta_outputs.dtype) if torch_dtype(self).is_complex else ge.Identity(self)


@converter(aten.imag.default)
def imag(self, *, meta_outputs):
    """Return the imaginary part."""
    return ge.Imag(self, Tout=meta_outputs.dtype)


@converter(aten.complex.default)
def complex_(real, imag, *, meta_outputs):
    """Return a complex number from its parts."""
    return ge.Complex(real, imag, Tout=meta_outputs.dtype)


@converter(aten.view_as_real.default)
def view_as_real(self, *, meta_outputs):
    """Return real and imaginary part in a new last dim."""
    parts = [part(self, Tout=meta_outputs.dtype) for part in (ge.Real, ge.Imag)]
    return ge.Pack(parts, axis=self.rank, N=2)


@converter(aten.view_as_complex.default)
def view_as_complex(self, *, meta_outputs):
    """Return the pairs in the last dim as complex numbers."""
    real, imag = ge.Unpack(self, num=2, axis=self.rank - 1, outputs=2)
    return ge.Complex(real, imag, Tout=meta_outputs.dtype)


@converter(aten.angle.default)
def angle(self, *, meta_outputs):
    """Return the argument of a complex number; for a real one 0, or pi if it is negative."""
    if torch_dtype(self).is_complex:
        return ge.Angle(self, Tout=meta_outputs.dtype)
    x = cast(self, meta_outputs.dtype)
    half = ge.SelectV2(ge.Less(x, like(0.0, x)), like(torch.pi, x), like(0.0, x))
    return ge.SelectV2(ge.NotEqual(x, x), x, half)


@converter(aten.conj_physical.default, aten._conj_physical.default, aten._conj.default)
def conj(self):
    """Return the conjugate."""
    return ge.Conj(self) if torch_dtype(self).is_complex else ge.TensorMove(self)


@converter(aten.resolve_conj.default, aten.resolve_neg.default)
def resolve(self):
    """Return the tensor unchanged: the IR has no lazy conjugates and negations."""
    return ge.Identity(self)
