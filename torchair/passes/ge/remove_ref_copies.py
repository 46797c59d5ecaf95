"""input -> TensorMove -> reference op -> Assign(input): the op may write the input itself.

This pass is for exported graphs. In torchair's own runs, reference ops return new values, and the Assign
writes.
"""

from __future__ import annotations

from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Graph, Op, Tensor
from torchair.ge.schema.references import aliases
from torchair.passes.pass_manager import PassContext


def optimize_reference_op_redundant_copy(graph: Graph, ctx: PassContext) -> int:
    """Remove the copies; return how many were removed.

    The Assign is removed, too, unless it alone keeps the op alive or the result is a result of the graph.
    """
    changed = 0
    for op in list(graph.ops):
        for output, slot in aliases(op):
            changed += _bypass(graph, op, op.outputs[output], slot)
    return changed


def _bypass(graph: Graph, op: Op, result: Tensor, slot: int) -> int:
    copied = op.slots[slot].tensor
    readers = graph.consumers()
    if copied is None or copied.op.type != "TensorMove" or len(readers[copied]) != 1:
        return 0
    source = copied.op.inputs[0]
    if source.op.type not in INPUT_TYPES:
        return 0
    others = [reader for reader, _ in readers[source] if reader.type != "Cmo" and reader is not copied.op]
    if len(others) != 1 or not _writes_back(others[0], source, result):
        return 0
    op.slots[slot].tensor = source
    assign = others[0]
    is_returned = result in graph.returned or any(r.type == OUTPUT_TYPE for r, _ in readers[result])
    if is_returned or len(readers[result]) == 1:
        graph.remove([copied.op])
    else:
        graph.remove([copied.op, assign])
    return 1


def _writes_back(op: Op, source: Tensor, result: Tensor) -> bool:
    return op.type == "Assign" and op.inputs[0] is source and op.inputs[1] is result
