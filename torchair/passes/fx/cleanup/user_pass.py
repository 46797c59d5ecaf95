"""Call the user's own passes as `f(gm, example_inputs, config)`; they may edit the graph in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from torchair.core.errors import BadPass
from torchair.core.torch_private.fake.fake_tensors import detect_fake_mode, fake_tensor_prop
from torchair.passes.pass_manager import PassContext


def user_pre_pass(gm: fx.GraphModule, ctx: PassContext) -> int:
    """`post_grad_custom_pre_pass`: receives the graph as AOTAutograd returned it."""
    return _call("post_grad_custom_pre_pass", ctx.user_pre_pass, gm, ctx)


def user_post_pass(gm: fx.GraphModule, ctx: PassContext) -> int:
    """`post_grad_custom_post_pass`: receives the graph after the built-in passes."""
    return _call("post_grad_custom_post_pass", ctx.user_post_pass, gm, ctx)


def _call(option: str, function: Callable[..., Any] | None, gm: fx.GraphModule, ctx: PassContext) -> int:
    """Call a user pass and recompute all metadata, because the pass may leave it missing or stale."""
    if function is None:
        return 0
    before = {node: (node.target, node.args, node.kwargs) for node in gm.graph.nodes}
    name = getattr(function, "__qualname__", repr(function))
    try:
        function(gm, list(ctx.inputs), ctx.config)
    except Exception as error:
        raise BadPass(
            f"the user's pass {name} ({option}) raised {type(error).__name__}: {error}"
        ).of_user() from error
    changed = sum(before.get(node) != (node.target, node.args, node.kwargs) for node in gm.graph.nodes)
    changed += len(before.keys() - set(gm.graph.nodes))
    if not changed:
        return 0
    try:
        gm.graph.lint()
        gm.recompile()
        fake_tensor_prop(gm, detect_fake_mode(ctx.inputs), ctx.inputs)
    except Exception as error:
        raise BadPass(
            f"the user's pass {name} ({option}) left an invalid graph: {error}",
            next="print gm.graph at the end of the pass; every node must come after the nodes that it reads",
        ).of_user() from error
    return changed
