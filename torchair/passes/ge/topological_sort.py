"""The ops of the IR in the order that `topology_sorting_strategy` names."""

from __future__ import annotations

from torchair.ge.builder.random_state import draws_numbers
from torchair.ge.graph import Graph, Op
from torchair.ge.toposort import STRATEGIES
from torchair.passes.ge.dead_code import EFFECTS
from torchair.passes.pass_manager import PassContext


def order_ops(graph: Graph, ctx: PassContext) -> int:
    """How many ops stand elsewhere than before. What acts beyond its results, draws numbers or calls other
    graphs stays where it is, and nothing passes it: who reads memory before it is written goes on doing so.
    """
    return sum(_sort(part, ctx.order) for part in (graph, *graph.subgraphs.values()))


def _sort(graph: Graph, strategy: str) -> int:
    sort, placed = STRATEGIES[strategy], dict[Op, bool]()
    segment: list[Op] = []
    for op in graph.ops:
        if _stays(op):
            sort(segment, placed)
            placed[op] = True
            segment = []
        else:
            segment.append(op)
    sort(segment, placed)
    before, graph.ops = graph.ops, list(placed)
    return sum(old is not new for old, new in zip(before, graph.ops, strict=True))


def _stays(op: Op) -> bool:
    return op.type in EFFECTS or bool(op.subgraphs) or draws_numbers(op)
