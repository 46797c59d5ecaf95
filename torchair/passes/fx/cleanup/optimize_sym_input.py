"""A symbolic-int input that equals a dimension of a tensor input is read from that tensor: it need not be
fed.
"""

from __future__ import annotations

import torch
from torch import fx

from torchair.passes.pass_manager import PassContext


def optimize_sym_input(gm: fx.GraphModule, ctx: PassContext) -> int:
    """The first tensor and dim that match; the placeholder stays (the call still passes it), its readers
    move.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    where = _dims(placeholders)
    changed = 0
    for node in placeholders:
        value = node.meta.get("val")
        if not isinstance(value, torch.SymInt) or not node.users or value.node.expr not in where:
            continue
        tensor, dim = where[value.node.expr]
        with gm.graph.inserting_after(placeholders[-1]):
            size = gm.graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
        size.meta["val"] = value
        node.replace_all_uses_with(size)
        changed += 1
    if changed:
        gm.recompile()
    return changed


def _dims(placeholders: list[fx.Node]) -> dict[object, tuple[fx.Node, int]]:
    """Symbol -> the first (tensor, dim) that is exactly this symbol."""
    found: dict[object, tuple[fx.Node, int]] = {}
    for node in placeholders:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for dim, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                found.setdefault(size.node.expr, (node, dim))
    return found
