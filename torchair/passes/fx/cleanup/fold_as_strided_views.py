"""as_strided(view(x), …) -> as_strided(x, …): it reads the storage, whichever part of it is passed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchair.fxgraph.layout import viewed_by
from torchair.fxgraph.symbols import is_symbol
from torchair.passes.pass_manager import PassContext

aten = torch.ops.aten


def root_as_strided(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Apply as_strided to the tensor that owns the memory.

    Later stages treat tensors as logical, so a part of a tensor no longer reaches the memory next to it.
    """
    changed = 0
    for node in gm.graph.find_nodes(op="call_function", target=aten.as_strided.default):
        source: Any = node.args[0]
        offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
        if offset is None:
            offset = source.meta["val"].storage_offset()
        owner = _owner(source)
        if owner is source:
            continue
        if is_symbol(offset):
            ctx.skip(node, "the storage offset of the view is symbolic")
            continue
        node.args, node.kwargs = (owner, node.args[1], node.args[2], offset), {}
        changed += 1
    return changed


def _owner(node: fx.Node) -> fx.Node:
    """Return the node that owns the memory, through views of the same dtype; a write in between stops the
    search.
    """
    look = _bit_view(node)
    while (viewed := viewed_by(node)) is not None and viewed[1] is not None and _bit_view(viewed[0]) == look:
        node = viewed[0]
    return node


def _bit_view(node: fx.Node) -> tuple[torch.dtype, bool, bool]:
    """Return how the bits are read: dtype, conjugate bit and negative bit."""
    value = node.meta["val"]
    return value.dtype, value.is_conj(), value.is_neg()
