"""ATen's casts, copies and writes."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import as_type, cast, same_size, shape_of, sizes
from torchair.convert.base.registry import converter, map_one_to_one
from torchair.core import dtypes

aten = torch.ops.aten


@converter(aten._to_copy.default)
def to_copy(
    self,
    *,
    dtype=None,
    layout=None,
    device=None,
    pin_memory=None,
    non_blocking=False,
    memory_format=None,
    meta_outputs,
):
    """Cast to another dtype.

    torch moves tensors between devices (see `convert.py`). Layouts are restored at the end.
    """
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"the IR has no layout {layout}")
    return ge.TensorMove(self) if self.dtype == meta_outputs.dtype else cast(self, meta_outputs.dtype)


@converter(aten.clone.default)
def clone(self, *, memory_format=None):
    """Copy. A copy for another layout is made where that layout is needed."""
    return (
        ge.TensorMove(self)
        if memory_format in (None, torch.preserve_format) or _is_contiguous(self)
        else ge.Identity(self)
    )


def _is_contiguous(x) -> bool:
    """Return whether FX has this tensor contiguous; a clone of it then only creates a new storage."""
    return isinstance(x.meta, torch.Tensor) and x.meta.is_contiguous()


map_one_to_one(
    {
        aten.detach.default: ge.Identity,
        aten.alias.default: ge.Identity,
        aten.lift.default: ge.Identity,
        aten.lift_fresh.default: ge.Identity,
        aten.lift_fresh_copy.default: ge.TensorMove,
        aten.alias_copy.default: ge.TensorMove,
        aten.detach_copy.default: ge.TensorMove,
    }
)


@converter(aten.view.dtype)
def view_dtype(self, dtype):
    """Read the same bytes as another type."""
    return as_type(self, dtypes.to_ge(dtype))


@converter(aten.copy.default)
def copy(self, src, non_blocking=False):
    """Return `src` in the dtype and shape of `self`."""
    value = cast(src, self.dtype)
    if len(sizes(src)) == self.rank and all(map(same_size, sizes(src), sizes(self))):
        return ge.TensorMove(value) if value is src else value
    return ge.BroadcastTo(value, shape_of(self))


@converter(aten.copy_.default)
def copy_(self, src, non_blocking=False):
    """Write `src` into a graph input."""
    return ge.Assign(self, cast(src, self.dtype))
