"""MatMul(Transpose(a), b) -> MatMul[transpose_x1](a, b): a transpose of the last two dims becomes a flag."""

from __future__ import annotations

from torchair.ge.attr import Bool
from torchair.ge.graph import Graph, transposed
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
            read = op.slots[number].tensor
            source = None if read is None else transposed(read)
            if source is None:
                continue
            op.slots[number].tensor = source
            op.attrs[flag] = Bool(not (flag in op.attrs and op.attrs[flag].value))
            changed += 1
    return changed
