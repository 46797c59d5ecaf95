"""Sort the ops of the IR by `topology_sorting_strategy`."""

from __future__ import annotations

from torchair.ge.builder.random_state import is_random
from torchair.ge.graph import Graph, Op
from torchair.ge.toposort import STRATEGIES
from torchair.passes.ge.dead_code import EFFECTS
from torchair.passes.pass_manager import PassContext


def order_ops(graph: Graph, ctx: PassContext) -> int:
    """Sort the ops; return how many changed position.

    Ops with side effects, random ops and calls of other graphs keep their position, and no op moves across
    them. So an op that reads memory before a write still does so.
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
    return op.type in EFFECTS or bool(op.subgraphs) or is_random(op)
