"""MatMul(a, Bitcast(Transpose(w))) -> MatMul[transpose_x2](a, Bitcast(w)): the transpose comes after the
Bitcast, and there becomes a flag at once, for Transpose itself takes few of the types that weights have.

The two commute where both types have values of one width. A wider or narrower one splits or joins values
along the last dim, and a transpose decides which dim that is: there they stay as they are. Weights that torch
has packed along the other dim are read so by their converters, which leave no transpose behind.
"""

from __future__ import annotations

import torch

from torchair import ge
from torchair.core import dtypes
from torchair.ge.graph import Graph, Op, Tensor
from torchair.passes.ge.fold_transpose import FLAGS, bare, fed_slots, fold, turned
from torchair.passes.pass_manager import PassContext


def move_mm_weight_transpose_after_bitcast(graph: Graph, ctx: PassContext) -> int:
    """How many were moved. What nobody reads any more goes with the dead ops."""
    changed = 0
    for op in list(graph.ops):
        for name in FLAGS.get(op.type, ()):
            casts = [bare(slot.tensor) for slot in fed_slots(op, name) if slot.tensor is not None]
            if any(_source(cast) for cast in casts) and all(_commutes(op, name, cast, ctx) for cast in casts):
                changed += fold(op, name, [_bits(graph, cast) for cast in casts], ctx)
    return changed


def _source(cast: Tensor) -> Tensor | None:
    """`w` of Bitcast(Transpose(w))."""
    return turned(cast.op.inputs[0]) if cast.op.type == "Bitcast" else None


def _commutes(op: Op, name: str, cast: Tensor, ctx: PassContext) -> bool:
    source = _source(cast)
    if source is not None and dtypes.bits(source.dtype) != dtypes.bits(cast.dtype):
        ctx.skip(op.name, f"{name} is split or joined along the dim that its transpose has made the last")
        return False
    return True


def _bits(graph: Graph, cast: Tensor) -> Tensor | None:
    """Bitcast(w) where Bitcast(Transpose(w)) stands."""
    source = _source(cast)
    if source is None:
        return None
    place, origin = graph.ops.index(cast.op), graph.origin
    graph.origin = cast.op.origin
    with graph:
        made: Tensor = ge.Bitcast(source, type=cast.dtype)
    graph.origin = origin
    assert isinstance(cast.meta, torch.Tensor), "a Bitcast makes a tensor"
    made.meta, made.desc.dtype = cast.meta.mT, cast.dtype
    graph.ops.insert(place, graph.ops.pop())
    return made
