"""Run all nodes in graph order on the stream of the call.

This applies if the device has no other stream, or if the user asked for a single stream.
"""

from __future__ import annotations

import torch
from torch import fx

from torchair.core.source_location import source_of
from torchair.ops.streams import stream_ops
from torchair.ops.streams.scope_analysis import blocks
from torchair.passes.pass_manager import PassContext

ASKED_FOR = "ge_config.enable_single_stream"


def run_on_one_stream(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Remove stream scopes, tokens and events: graph order replaces them."""
    found = [node for node in gm.graph.nodes if node.target in stream_ops.EVENTS | stream_ops.KEEP]
    scopes = _stream_scopes(gm.graph)
    if scopes and ctx.switches.get(ASKED_FOR, False):
        ctx.degradations.add(
            f"stream scopes have no effect: {ASKED_FOR} is set",
            at=source_of(scopes[0]),
            next="unset the option, or remove the stream scopes",
        )
    for node in (*scopes, *reversed(found)):
        if node.users and node.target in stream_ops.RECORD:
            _stay_as_value(gm.graph, node)
        gm.graph.erase_node(node)
    if found or scopes:
        gm.recompile()
    return len(found) + len(scopes)


def _stream_scopes(graph: fx.Graph) -> list[fx.Node]:
    """Return both ends of each stream scope; scopes of other kinds stay."""
    return [node for block in blocks(graph) if stream_ops.is_stream_scope(block[0]) for node in block]


def _stay_as_value(graph: fx.Graph, token: fx.Node) -> None:
    """Replace a returned token by a tensor without elements."""
    readers = [user for user in token.users if user.target not in stream_ops.WAIT]
    if readers:
        with graph.inserting_before(token):
            options = {"dtype": torch.float32, "device": token.meta["val"].device}
            empty = graph.call_function(torch.ops.aten.full.default, ([0], 0.0), options)
        empty.meta = dict(token.meta)
        for user in readers:
            user.replace_input_with(token, empty)
