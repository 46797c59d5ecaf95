"""Torch's prims, which decompositions end in."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import cast, promote
from torchair.convert.registry import converter, rename

prims = torch.ops.prims

rename({
    prims.add.default: ge.Add, prims.sub.default: ge.Sub, prims.mul.default: ge.Mul, prims.maximum.default: ge.Maximum,
    prims.minimum.default: ge.Minimum, prims.pow.default: ge.Pow, prims.neg.default: ge.Neg, prims.exp.default: ge.Exp,
    prims.log.default: ge.Log, prims.sqrt.default: ge.Sqrt, prims.rsqrt.default: ge.Rsqrt, prims.sin.default: ge.Sin,
    prims.cos.default: ge.Cos, prims.tanh.default: ge.Tanh, prims.erf.default: ge.Erf, prims.floor.default: ge.Floor,
    prims.ceil.default: ge.Ceil, prims.trunc.default: ge.Trunc, prims.round.default: ge.Round,
    prims.reciprocal.default: ge.Reciprocal,
}, promoted=True)  # fmt: skip
rename({
    prims.lt.default: ge.Less, prims.le.default: ge.LessEqual, prims.gt.default: ge.Greater,
    prims.ge.default: ge.GreaterEqual, prims.eq.default: ge.Equal, prims.ne.default: ge.NotEqual,
    prims.where.default: ge.SelectV2,
})  # fmt: skip


@converter(prims.convert_element_type.default)
def convert_element_type(a, dtype):
    """Another dtype."""
    return cast(a, dtype) if a.meta.dtype != dtype else ge.Identity(a)


@converter(prims.div.default)
def div(a, b, *, meta_outputs):
    """Integers divide toward zero."""
    op = ge.RealDiv if meta_outputs.torch_dtype.is_floating_point else ge.TruncateDiv
    return op(*promote(a, b, to=meta_outputs.dtype))


@converter(prims.iota.default)
def iota(length, *, start, step, dtype, device, requires_grad, meta_outputs):
    """`length` integers from `start` in steps."""
    first, stride = cast(start, torch.int64), cast(step, torch.int64)
    limit = ge.Add(first, ge.Mul(cast(length, torch.int64), stride))
    return cast(ge.Range(first, limit, stride), meta_outputs.dtype)
