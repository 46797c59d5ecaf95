"""Remove scopes that change nothing in a program: hardware hints, which matter only in an exported graph."""

from __future__ import annotations

from torch import fx

from torchair.core.log import logger
from torchair.core.source_location import source_of
from torchair.ops.streams import scope_analysis, stream_ops
from torchair.passes.pass_manager import PassContext


def has_cores(ctx: PassContext, at: str = "") -> bool:
    """Return whether the device can limit cores; warn if it cannot."""
    if ctx.switches.get("limits_cores", True):
        return True
    what = "a core limit has no effect on this device"
    ctx.degradations.add(what, at=at, next="remove the core limit: the results are the same without it")
    return False


def drop_idle_scopes(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Remove scopes without effect; return how many were removed."""
    dropped = 0
    for enter, leave in scope_analysis.blocks(gm.graph):
        found = stream_ops.attributes(enter)
        if set(stream_ops.CORE_LIMITS) <= found.keys():
            has_cores(ctx, source_of(enter))
        if not scope_analysis.ACTING & found.keys() and not stream_ops.is_stream_scope(enter):
            logger.info("this scope is a hardware hint and has no effect on this device: %s", found)
            gm.graph.erase_node(enter)
            gm.graph.erase_node(leave)
            dropped += 1
    if dropped:
        gm.recompile()
    return dropped
