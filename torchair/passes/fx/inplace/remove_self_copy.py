"""Remove copy_(x, x), which does nothing."""

from __future__ import annotations

import torch
from torch import fx

from torchair.passes.fx.analysis.alias_analysis import is_same_view
from torchair.passes.pass_manager import PassContext

aten = torch.ops.aten


def eliminate_self_copy(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Remove self-copies, also between equal views of one tensor; keep a copy whose result is used."""
    found = [
        node
        for node in gm.graph.find_nodes(op="call_function", target=aten.copy_.default)
        if not node.users and is_same_view(node.args[0], node.args[1])
    ]
    for node in found:
        gm.graph.erase_node(node)
    if found:
        gm.recompile()
    return len(found)
