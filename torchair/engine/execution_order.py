"""Order ops so that all readers of an argument's old value run before it is written."""

from __future__ import annotations

from torchair.ge.graph import INPUT_TYPES, Graph, Op


def writes_last(graph: Graph) -> list[Op]:
    """Return the ops in order, with unread writes to arguments moved to the end.

    A copy or view of the argument may be the argument itself here, and may be read after the graph's write.
    """
    read = {tensor for op in graph.ops for tensor in op.inputs}
    read.update(graph.returned)
    last = [op for op in graph.ops if writes_argument(op) and read.isdisjoint(op.outputs)]
    first = [op for op in graph.ops if op not in set(last)]
    return [*first, *last]


def writes_argument(op: Op) -> bool:
    """Return whether the op writes an argument of the graph, not an intermediate value."""
    return op.type == "Assign" and op.inputs[0].op.type in INPUT_TYPES
