"""Elementwise ATen ops."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import cast, like, promote
from torchair.convert.registry import converter, rename

aten = torch.ops.aten

rename({
    aten.relu.default: ge.Relu,
})
rename({
    aten.neg.default: ge.Neg,
    aten.tanh.default: ge.Tanh,
    aten.sigmoid.default: ge.Sigmoid,
    aten.mul.Tensor: ge.Mul,
    aten.mul.Scalar: ge.Mul,
}, promoted=True)


@converter(aten.add.Tensor, aten.add.Scalar)
def add(self, other, alpha=1, *, meta_outputs):
    """self + alpha * other, computed in the dtype of the result."""
    self, other = promote(self, other, to=meta_outputs.dtype)
    return ge.Add(self, other if alpha == 1 else ge.Mul(other, like(alpha, other)))


@converter(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def to_copy(self, dtype=None, *, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None, meta_outputs):
    """Another dtype; device moves are the engine's business."""
    return ge.TensorMove(self) if self.dtype == meta_outputs.dtype else cast(self, meta_outputs.dtype)


@converter(aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)
def clone(self, *, memory_format=None):
    """The same value."""
    return ge.Identity(self)


@converter(aten.copy_.default)
def copy_(self, src, non_blocking=False):
    """Write `src` into a graph input."""
    return ge.Assign(self, cast(src, self.dtype))
