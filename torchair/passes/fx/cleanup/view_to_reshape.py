"""aten.view -> aten.reshape: later stages may change strides, and `view` would then fail."""

from __future__ import annotations

import torch
from torch import fx

from torchair.passes.pass_manager import PassContext

aten = torch.ops.aten


def view_to_reshape(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Replace every `view` by sizes; `view` by dtype is another op."""
    views = list(gm.graph.find_nodes(op="call_function", target=aten.view.default))
    for node in views:
        node.target = aten.reshape.default
    gm.recompile()
    return len(views)
