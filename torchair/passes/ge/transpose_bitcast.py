"""MatMul(a, Bitcast(Transpose(w))) -> MatMul[transpose_x2](a, Bitcast(w)): the transpose moves after the
Bitcast.

There it becomes a flag directly, because Transpose itself accepts few of the types of weights.

The two commute where both types have the same width. A wider or narrower type splits or joins values along
the last dim, and a transpose decides which dim that is: such ops do not change. Converters read weights that
torch packed along the other dim directly, without a transpose.
"""

from __future__ import annotations

import torch

from torchair import ge
from torchair.core import dtypes
from torchair.ge.graph import Graph, Op, Tensor
from torchair.passes.ge.fold_transpose import FLAGS, bare, fed_slots, fold, turned
from torchair.passes.pass_manager import PassContext


def move_mm_weight_transpose_after_bitcast(graph: Graph, ctx: PassContext) -> int:
    """Move the transposes; return how many were moved. Dead-op removal erases ops without readers."""
    changed = 0
    for op in list(graph.ops):
        for name in FLAGS.get(op.type, ()):
            casts = [bare(slot.tensor) for slot in fed_slots(op, name) if slot.tensor is not None]
            if any(_source(cast) for cast in casts) and all(_commutes(op, name, cast, ctx) for cast in casts):
                changed += fold(op, name, [_bits(graph, cast) for cast in casts], ctx)
    return changed


def _source(cast: Tensor) -> Tensor | None:
    """Return `w` of Bitcast(Transpose(w))."""
    return turned(cast.op.inputs[0]) if cast.op.type == "Bitcast" else None


def _commutes(op: Op, name: str, cast: Tensor, ctx: PassContext) -> bool:
    source = _source(cast)
    if source is not None and dtypes.bits(source.dtype) != dtypes.bits(cast.dtype):
        ctx.skip(op.name, f"{name} is split or joined along the dim that its transpose made the last")
        return False
    return True


def _bits(graph: Graph, cast: Tensor) -> Tensor | None:
    """Return Bitcast(w) at the position of Bitcast(Transpose(w))."""
    source = _source(cast)
    if source is None:
        return None
    place, origin = graph.ops.index(cast.op), graph.origin
    graph.origin = cast.op.origin
    with graph:
        result: Tensor = ge.Bitcast(source, type=cast.dtype)
    graph.origin = origin
    assert isinstance(cast.meta, torch.Tensor), "a Bitcast returns a tensor"
    result.meta, result.desc.dtype = cast.meta.mT, cast.dtype
    graph.ops.insert(place, graph.ops.pop())
    return result
