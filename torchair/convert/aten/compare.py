"""ATen's elementwise comparisons, logic, bits and selection."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import (
    BOOL,
    cast,
    like,
    promote,
    result_type,
    same_size,
    sizes,
    torch_dtype,
)
from torchair.convert.base.registry import converter, map_one_to_one

aten = torch.ops.aten


def _comparison(op, on_bool=None):
    """Compare both sides in ATen's comparison dtype. The IR does not order bools: they become numbers."""

    def run(self, other):
        dtype = result_type(self, other)
        if dtype is torch.bool and on_bool is None:
            dtype = torch.float32
        return op(*promote(self, other, to=dtype))

    return run


for _targets, _row in {
    (aten.eq.Tensor, aten.eq.Scalar): _comparison(ge.Equal, on_bool=ge.Equal),
    (aten.ne.Tensor, aten.ne.Scalar): _comparison(ge.NotEqual, on_bool=ge.NotEqual),
    (aten.lt.Tensor, aten.lt.Scalar, aten.less.Tensor, aten.less.Scalar): _comparison(ge.Less),
    (aten.le.Tensor, aten.le.Scalar): _comparison(ge.LessEqual),
    (aten.gt.Tensor, aten.gt.Scalar): _comparison(ge.Greater),
    (aten.ge.Tensor, aten.ge.Scalar): _comparison(ge.GreaterEqual),
}.items():
    converter(*_targets)(_row)


def _logical(op):
    """Create a converter for logic on truth values of any dtype."""

    def run(*operands):
        return op(*promote(*operands, to=BOOL))

    return run


for _target, _op in {
    aten.logical_and.default: ge.LogicalAnd,
    aten.logical_or.default: ge.LogicalOr,
    aten.logical_xor.default: ge.NotEqual,
    aten.logical_not.default: ge.LogicalNot,
}.items():
    converter(_target)(_logical(_op))


def _bitwise(op, on_bool):
    """Create a converter for bits of integers and logic on bools."""

    def run(*operands, meta_outputs):
        chosen = on_bool if meta_outputs.torch_dtype is torch.bool else op
        return chosen(*promote(*operands, to=meta_outputs.dtype))

    return run


for _packet, _row in {
    aten.bitwise_and: _bitwise(ge.BitwiseAnd, ge.LogicalAnd),
    aten.bitwise_or: _bitwise(ge.BitwiseOr, ge.LogicalOr),
    aten.bitwise_xor: _bitwise(ge.BitwiseXor, ge.NotEqual),
}.items():
    converter(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(_row)

converter(aten.bitwise_not.default)(_bitwise(ge.Invert, ge.LogicalNot))
map_one_to_one({
    aten.bitwise_left_shift.Tensor: ge.LeftShift, aten.bitwise_left_shift.Tensor_Scalar: ge.LeftShift,
    aten.bitwise_right_shift.Tensor: ge.RightShift, aten.bitwise_right_shift.Tensor_Scalar: ge.RightShift,
    aten.__lshift__.Scalar: ge.LeftShift, aten.__rshift__.Scalar: ge.RightShift,
    aten.__lshift__.Tensor: ge.LeftShift, aten.__rshift__.Tensor: ge.RightShift,
}, promoted=True)  # fmt: skip


def _of_floats(op, of_integers):
    """Create a converter for a float predicate; integers are always finite, complex numbers use their
    parts.
    """

    def run(self, *, meta_outputs):
        dtype = torch_dtype(self)
        if dtype.is_complex:
            part = torch.float32 if dtype is torch.complex64 else torch.float64
            join = ge.LogicalAnd if of_integers else ge.LogicalOr
            return join(op(ge.Real(self, Tout=part)), op(ge.Imag(self, Tout=part)))
        if not dtype.is_floating_point:
            same = ge.Equal(self, self)
            return same if of_integers else ge.LogicalNot(same)
        return op(self)

    return run


for _target, _row in {
    aten.isinf.default: _of_floats(ge.IsInf, of_integers=False),
    aten.isnan.default: _of_floats(ge.IsNan, of_integers=False),
    aten.isfinite.default: _of_floats(ge.IsFinite, of_integers=True),
    aten.isposinf.default: _of_floats(lambda x: ge.Equal(x, like(float("inf"), x)), of_integers=False),
    aten.isneginf.default: _of_floats(lambda x: ge.Equal(x, like(float("-inf"), x)), of_integers=False),
}.items():
    converter(_target)(_row)

_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


@converter(aten.signbit.default)
def signbit(self):
    """Return whether the sign bit is set. Also true for -0.0 and NaNs with it."""
    dtype = torch_dtype(self)
    if dtype is torch.bool:
        return ge.NotEqual(self, self)
    bits = ge.Bitcast(self, type=_BITS[dtype]) if dtype in _BITS else self
    return ge.Less(bits, like(0, bits))


@converter(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(self, other, *, meta_outputs):
    """Return the magnitude of one, the sign of the other."""
    size, sign = promote(self, other, to=meta_outputs.dtype)
    size = ge.Abs(size)
    return ge.SelectV2(signbit(sign), ge.Neg(size), size)


@converter(aten.fmax.default)
def fmax(self, other, *, meta_outputs):
    """Return the larger value; a number wins over NaN."""
    return _numbers_first(ge.Maximum, ge.LogicalOr, ge.GreaterEqual, self, other, meta_outputs)


@converter(aten.fmin.default)
def fmin(self, other, *, meta_outputs):
    """Return the smaller value; a number wins over NaN."""
    return _numbers_first(ge.Minimum, ge.LogicalAnd, ge.LessEqual, self, other, meta_outputs)


def _numbers_first(op, on_bool, wins, self, other, meta):
    """Return the first of equal numbers, which matters for 0.0 and -0.0."""
    a, b = promote(self, other, to=meta.dtype)
    if meta.torch_dtype is torch.bool:
        return on_bool(a, b)
    if not meta.torch_dtype.is_floating_point:
        return op(a, b)
    return ge.SelectV2(ge.LogicalOr(wins(a, b), ge.IsNan(b)), a, b)


@converter(aten.heaviside.default)
def heaviside(self, values, *, meta_outputs):
    """Return 0 below zero, 1 above, `values` at zero; 0 for NaN."""
    zero = like(0, self)
    if torch_dtype(self) is torch.bool:
        return ge.LogicalOr(self, values)
    step = cast(ge.Greater(self, zero), meta_outputs.dtype)
    return ge.SelectV2(ge.Equal(self, zero), values, step)


@converter(aten.where.self)
def where(condition, self, other, *, meta_outputs):
    """Select one value or the other."""
    return ge.SelectV2(cast(condition, BOOL), *promote(self, other, to=meta_outputs.dtype))


@converter(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(self, mask, value, *, meta_outputs):
    """Return `value` where the mask is set. A larger mask makes a larger result, which MaskedFill does not
    support.
    """
    x, value = promote(self, value, to=meta_outputs.dtype)
    if len(sizes(self)) == meta_outputs.rank and all(map(same_size, sizes(self), meta_outputs.symsize)):
        return ge.MaskedFill(x, mask, value)
    return ge.SelectV2(mask, value, x)
