"""The order in which ops run: an argument is read by all who want its old value before it is written."""

from __future__ import annotations

from torchair.ge.graph import Graph, Op


def writes_last(graph: Graph) -> list[Op]:
    """The ops in order, but `Assign`s whose result nobody reads at the end: a copy or view of the argument
    may be the argument itself here, and be read after the place where the graph writes.
    """
    read = {tensor for op in graph.ops for tensor in op.inputs}
    read |= {result.tensor for result in graph.results if result.tensor is not None}
    last = [op for op in graph.ops if op.type == "Assign" and read.isdisjoint(op.outputs)]
    first = [op for op in graph.ops if op not in set(last)]
    return [*first, *last]
