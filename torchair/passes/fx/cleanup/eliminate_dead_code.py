"""Remove nodes that nothing reads."""

from __future__ import annotations

from torch import fx

from torchair.passes.pass_manager import PassContext


def eliminate_dead_code(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Remove dead nodes by FX's own rule of effects (writes, random state, collectives)."""
    before = len(gm.graph.nodes)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return before - len(gm.graph.nodes)
