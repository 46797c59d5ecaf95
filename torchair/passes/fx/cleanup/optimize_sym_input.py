"""Read a symbolic int from a dimension of a tensor input that equals it, so that it need not be an input."""

from __future__ import annotations

import torch
from torch import fx

from torchair.passes.pass_manager import PassContext


def optimize_sym_input(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Redirect the readers to the first matching tensor and dim.

    The placeholder stays, because the call still passes it.
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
    """Map each symbol to the first (tensor, dim) that is exactly this symbol."""
    found: dict[object, tuple[fx.Node, int]] = {}
    for node in placeholders:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for dim, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                found.setdefault(size.node.expr, (node, dim))
    return found
