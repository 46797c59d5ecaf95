"""Nodes nobody reads go."""

from __future__ import annotations

from torch import fx

from torchair.passes.pass_manager import PassContext


def eliminate_dead_code(gm: fx.GraphModule, ctx: PassContext) -> int:
    """FX's own rule of what has an effect (writes, random state, collectives) keeps those nodes."""
    before = len(gm.graph.nodes)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return before - len(gm.graph.nodes)
