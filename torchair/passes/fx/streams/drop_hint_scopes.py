"""Scopes that change nothing in a program go: hints for hardware, which only an exported graph carries."""

from __future__ import annotations

from torch import fx

from torchair.core.log import logger
from torchair.core.source_location import source_of
from torchair.ops.streams import scope_analysis, stream_ops
from torchair.passes.pass_manager import PassContext


def has_cores(ctx: PassContext, at: str = "") -> bool:
    """Can the device limit cores? That it cannot is told."""
    if ctx.switches.get("limits_cores", True):
        return True
    what = "a limit of cores has no effect on this device"
    ctx.degradations.add(what, at=at, next="leave it out: the results are the same")
    return False


def drop_idle_scopes(gm: fx.GraphModule, ctx: PassContext) -> int:
    """How many went. That cores cannot be limited on a device is told."""
    dropped = 0
    for enter, leave in scope_analysis.blocks(gm.graph):
        found = stream_ops.attributes(enter)
        if set(stream_ops.CORE_LIMITS) <= found.keys():
            has_cores(ctx, source_of(enter))
        if not scope_analysis.ACTING & found.keys() and not stream_ops.is_stream_scope(enter):
            logger.info("a scope is a hint for hardware and has no effect here: %s", found)
            gm.graph.erase_node(enter)
            gm.graph.erase_node(leave)
            dropped += 1
    if dropped:
        gm.recompile()
    return dropped
