"""input -> view -> scatter -> view -> copy_ into the same input  becomes the in-place scatter.

AOTAutograd produces this form for an in-place write through a view of a cache. The in-place variant writes
only its rows.
"""

from __future__ import annotations

import torch
from torch import fx

from torchair.core.torch_private.operators.schemas import find_overload
from torchair.passes.pass_manager import PassContext

aten = torch.ops.aten

TWINS = {
    "npu.scatter_update.default": "npu.scatter_update_.default",
    "npu.npu_scatter_nd_update.default": "npu.npu_scatter_nd_update_.default",
    "npu.npu_quant_scatter.default": "npu.npu_quant_scatter_.default",
}


def recover_view_inplace(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Replace the pattern by the in-place scatter.

    It applies only where the first view has one reader, the input two, and source and destination have equal
    shapes.
    """
    changed = 0
    for copy in list(gm.graph.find_nodes(op="call_function", target=aten.copy_.default)):
        if _recover(gm, copy, ctx):
            changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return changed


def _recover(gm: fx.GraphModule, copy: fx.Node, ctx: PassContext) -> bool:
    target, last_view = copy.args[0], copy.args[1]
    if not (isinstance(target, fx.Node) and target.op == "placeholder" and _is_view(last_view)):
        return False
    scatter = last_view.args[0]  # type: ignore[union-attr]
    if not (isinstance(scatter, fx.Node) and str(scatter.target) in TWINS):
        return False
    first_view = scatter.args[0]
    if not (_is_view(first_view) and first_view.args[0] is target):  # type: ignore[union-attr]
        return False
    why_not = _why_not(target, first_view, last_view)  # type: ignore[arg-type]
    if why_not is not None:
        ctx.skip(scatter, why_not)
        return False
    variant = find_overload(TWINS[str(scatter.target)])
    if variant is None:
        ctx.skip(scatter, f"{TWINS[str(scatter.target)]} does not exist")
        return False
    scatter.target = variant
    copy.replace_all_uses_with(target)
    gm.graph.erase_node(copy)
    return True


def _why_not(target: fx.Node, first_view: fx.Node, last_view: fx.Node) -> str | None:
    if target.meta["val"].shape != last_view.meta["val"].shape:
        return "the copied value has another shape than the input"
    if len(first_view.users) != 1:
        return "the view of the input has other readers"
    if len(target.users) != 2:
        return "the input has other readers"
    return None


def _is_view(node: object) -> bool:
    return isinstance(node, fx.Node) and node.target in (aten.view.default, aten.reshape.default)
