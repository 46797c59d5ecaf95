"""The order in which ops run: an argument is read by all who want its old value before it is written."""

from __future__ import annotations

from torchair.ge.graph import INPUT_TYPES, Graph, Op


def writes_last(graph: Graph) -> list[Op]:
    """The ops in order, but writes to arguments whose result nobody reads at the end: a copy or view of the
    argument may be the argument itself here, and be read after the place where the graph writes.
    """
    read = {tensor for op in graph.ops for tensor in op.inputs}
    read.update(graph.returned)
    last = [op for op in graph.ops if writes_argument(op) and read.isdisjoint(op.outputs)]
    first = [op for op in graph.ops if op not in set(last)]
    return [*first, *last]


def writes_argument(op: Op) -> bool:
    """Does it write an argument of the graph, rather than a value of it?"""
    return op.type == "Assign" and op.inputs[0].op.type in INPUT_TYPES
