"""wait_tensor(x, y) -> x: every stream that reads `x` from there on waits for `y` first."""

from __future__ import annotations

import torch
from torch import fx

from torchair.fxgraph.partition import is_free
from torchair.ops.streams import stream_ops
from torchair.ops.streams.scope_analysis import stream_of_nodes
from torchair.passes.pass_manager import PassContext


def wait_for_tensors(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Replace wait_tensor calls by waits where each stream first reads `x`; return how many were replaced."""
    found = [node for node in gm.graph.nodes if node.target in stream_ops.WAIT_TENSOR]
    if not found:
        return 0
    stream, position = stream_of_nodes(gm.graph), {node: place for place, node in enumerate(gm.graph.nodes)}
    for node in found:
        x, dependency = node.args
        waiting = set[object]()
        for user in sorted(_readers(node), key=position.__getitem__):
            if user.op == "output" or stream[user] in waiting:
                continue
            waiting.add(stream[user])
            with gm.graph.inserting_before(user):
                wait = gm.graph.call_function(torch.ops.air.wait.default, ([dependency],))
            position[wait], stream[wait] = position[user], stream[user]
        node.replace_all_uses_with(x)
        gm.graph.erase_node(node)
    gm.recompile()
    return len(found)


def _readers(node: fx.Node) -> set[fx.Node]:
    """Return the nodes that run and read a value or a view of it."""
    found: set[fx.Node] = set()
    for user in node.users:
        found |= _readers(user) if user.op == "call_function" and is_free(user) else {user}
    return found
