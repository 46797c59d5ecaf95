"""MatMul(Transpose(a), b) -> MatMul[transpose_x1](a, b): a transpose of the last two dims becomes a flag."""

from __future__ import annotations

from torchair.ge.attr import Bool
from torchair.ge.graph import Graph, Op, Tensor
from torchair.ge.host import Host
from torchair.passes.run import PassContext

# Op -> the flag of each of its first two inputs.
FLAGS = {
    "MatMul": ("transpose_x1", "transpose_x2"),
    "MatMulV2": ("transpose_x1", "transpose_x2"),
    "BatchMatMul": ("adj_x1", "adj_x2"),
    "BatchMatMulV2": ("adj_x1", "adj_x2"),
}


def move_transpose_into_mm(graph: Graph, ctx: PassContext) -> int:
    """The Transpose op itself goes with the dead ops when nobody else reads it."""
    changed = 0
    for op in graph.ops:
        for number, flag in enumerate(FLAGS.get(op.type, ())):
            source = _transposed(op.slots[number].tensor)
            if source is None:
                continue
            op.slots[number].tensor = source
            op.attrs[flag] = Bool(not (flag in op.attrs and op.attrs[flag].value))
            changed += 1
    return changed


def _transposed(tensor: Tensor | None) -> Tensor | None:
    """`a` when the tensor is a with its last two dims swapped."""
    if tensor is None or tensor.op.type != "Transpose":
        return None
    op: Op = tensor.op
    x, perm = op.slots[0].tensor, op.slots[1].tensor
    if x is None or perm is None or not isinstance(perm.meta, Host):
        return None
    rank = len(perm.meta.items)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    return x if rank >= 2 and tuple(perm.meta.items) == swapped else None
