"""Keep ops with side effects in program order by control edges: engines order ops only by their data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torchair.ge.communication import TALKING
from torchair.ge.graph import Graph, Op
from torchair.passes.pass_manager import PassContext

PRINT = "PrintV2"
PREFETCH = "Cmo"


def explicit_order_for_side_effect_nodes(graph: Graph, ctx: PassContext) -> int:
    """Add control edges between ops with side effects; return how many were added.

    The last one is tied to the output. Readers of a written input stay before or after the write, as in the
    program.
    """
    chain = [op for op in graph.ops if op.type == PRINT or op.type in TALKING]
    added = _chain(graph, chain)
    writers = [op for op in graph.ops if op.type == "Assign"]
    place = {op: number for number, op in enumerate(graph.ops)}
    for op in chain:
        for writer in writers:
            if writer.inputs[0] in op.inputs:
                first, second = sorted((op, writer), key=place.__getitem__)
                added += _after(second, first)
    return added


def explicit_order_for_cmo(graph: Graph, ctx: PassContext) -> int:
    """Add control edges between memory loads; return how many were added."""
    return _chain(graph, [op for op in graph.ops if op.type == PREFETCH])


def _chain(graph: Graph, chain: Sequence[Op]) -> int:
    added = sum(_after(second, first) for first, second in pairwise(chain))
    if chain and graph.output is not None:
        added += _after(graph.output, chain[-1])
    return added


def _after(op: Op, before: Op) -> int:
    if before in op.after:
        return 0
    op.after.append(before)
    return 1
