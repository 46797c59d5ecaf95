"""Convert torch's prims, in which decompositions end."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten import compare, complex, copies, pointwise  # noqa: F401 - used by their converters
from torchair.convert.base.operands import cast, promote, sizes
from torchair.convert.base.registry import candidates, converter, map_one_to_one
from torchair.ge.graph import Tensor

aten, prims = torch.ops.aten, torch.ops.prims


def same_as(rows):
    """Convert prims like an ATen op."""
    for target, model in rows.items():
        *_, ours = candidates(model)
        converter(target)(ours.fn)


map_one_to_one({
    prims.abs.default: ge.Abs, prims.acos.default: ge.Acos, prims.acosh.default: ge.Acosh,
    prims.add.default: ge.Add, prims.asin.default: ge.Asin, prims.asinh.default: ge.Asinh,
    prims.atan.default: ge.Atan, prims.atan2.default: ge.Atan2, prims.atanh.default: ge.Atanh,
    prims.ceil.default: ge.Ceil, prims.cos.default: ge.Cos, prims.cosh.default: ge.Cosh,
    prims.erf.default: ge.Erf, prims.erf_inv.default: ge.Erfinv, prims.erfc.default: ge.Erfc,
    prims.exp.default: ge.Exp, prims.expm1.default: ge.Expm1, prims.floor.default: ge.Floor,
    prims.fmod.default: ge.TruncateMod, prims.igamma.default: ge.Igamma,
    prims.igammac.default: ge.Igammac, prims.log.default: ge.Log, prims.log1p.default: ge.Log1p,
    prims.maximum.default: ge.Maximum, prims.minimum.default: ge.Minimum, prims.mul.default: ge.Mul,
    prims.ndtri.default: ge.Ndtri, prims.neg.default: ge.Neg, prims.nextafter.default: ge.NextAfter,
    prims.pow.default: ge.Pow, prims.reciprocal.default: ge.Reciprocal,
    prims.remainder.default: ge.FloorMod, prims.round.default: ge.Round, prims.rsqrt.default: ge.Rsqrt,
    prims.shift_left.default: ge.LeftShift, prims.shift_right_arithmetic.default: ge.RightShift,
    prims.sign.default: ge.Sign, prims.sin.default: ge.Sin, prims.sinh.default: ge.Sinh,
    prims.sqrt.default: ge.Sqrt, prims.sub.default: ge.Sub, prims.tan.default: ge.Tan,
    prims.tanh.default: ge.Tanh, prims.trunc.default: ge.Trunc,
}, promoted=True)  # fmt: skip
map_one_to_one({
    prims.lt.default: ge.Less, prims.le.default: ge.LessEqual, prims.gt.default: ge.Greater,
    prims.ge.default: ge.GreaterEqual, prims.eq.default: ge.Equal, prims.ne.default: ge.NotEqual,
    prims.where.default: ge.SelectV2, prims.isfinite.default: ge.IsFinite, prims.view_of.default: ge.Identity,
})  # fmt: skip
# For bools or complex numbers these differ as the ATen ops do.
same_as(
    {
        prims.clone.default: aten.clone.default,
        prims.bitwise_and.default: aten.bitwise_and.Tensor,
        prims.bitwise_or.default: aten.bitwise_or.Tensor,
        prims.bitwise_xor.default: aten.bitwise_xor.Tensor,
        prims.bitwise_not.default: aten.bitwise_not.default,
        prims.conj_physical.default: aten.conj_physical.default,
        prims.exp2.default: aten.exp2.default,
        prims.fmax.default: aten.fmax.default,
        prims.fmin.default: aten.fmin.default,
        prims.hypot.default: aten.hypot.default,
        prims.imag.default: aten.imag.default,
        prims.log10.default: aten.log10.default,
        prims.log2.default: aten.log2.default,
        prims.real.default: aten.real.default,
    }
)


@converter(prims.convert_element_type.default)
def convert_element_type(a, dtype):
    """Cast to another dtype."""
    return cast(a, dtype) if a.meta.dtype != dtype else ge.Identity(a)


@converter(prims.div.default)
def div(a, b, *, meta_outputs):
    """Divide; integers divide toward zero."""
    op = ge.RealDiv if meta_outputs.torch_dtype.is_floating_point else ge.TruncateDiv
    return op(*promote(a, b, to=meta_outputs.dtype))


@converter(prims.iota.default)
def iota(length, *, start, step, dtype, device, requires_grad, meta_outputs):
    """Return `length` integers from `start` in steps."""
    first, stride = cast(start, torch.int64), cast(step, torch.int64)
    limit = ge.Add(first, ge.Mul(cast(length, torch.int64), stride))
    return cast(ge.Range(first, limit, stride), meta_outputs.dtype)


@converter(prims.broadcast_in_dim.default)
def broadcast_in_dim(a, shape, broadcast_dimensions):
    """Insert new dims: the dims of `a` go to the given positions."""
    rank = sizes(shape)[0] if isinstance(shape, Tensor) else len(shape)
    new = [dim for dim in range(rank) if dim not in broadcast_dimensions]
    return ge.BroadcastTo(ge.Unsqueeze(a, axes=new) if new else a, shape)


@converter(prims.squeeze.default)
def squeeze(a, dimensions):
    """Remove these dims of size 1."""
    return ge.Squeeze(a, axis=list(dimensions)) if dimensions else ge.Identity(a)


@converter(prims.transpose.default)
def transpose(a, permutation):
    """Permute the dims."""
    return ge.Transpose(a, list(permutation))


@converter(prims.reshape.default)
def reshape(a, shape):
    """Change the sizes; the elements stay the same."""
    return ge.Reshape(a, shape)
