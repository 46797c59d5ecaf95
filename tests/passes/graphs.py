"""Small graphs for tests of passes, and what they look like as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from torchair.passes import CAPTURE_PASSES, PassContext, run

ops = torch.ops.npugraph_ex


def traced(fn: Any, *args: Any, tracing: str = "fake") -> tuple[fx.GraphModule, PassContext]:
    """The function as a functional graph with fake values, and a context for its passes."""
    gm = make_fx(fn, tracing_mode=tracing)(*args)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    inputs = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    return gm, PassContext(inputs=inputs)


def calls(gm: fx.GraphModule) -> list[str]:
    """The graph as text: its calls in order."""
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def node(gm: fx.GraphModule, target: Any, number: int = 0) -> fx.Node:
    """The n-th call of this op."""
    return [node for node in gm.graph.nodes if node.target is target][number]


def in_scope(gm: fx.GraphModule, first: fx.Node, last: fx.Node | None = None, label: str = "side") -> None:
    """Move the nodes from `first` to `last` to a side stream."""
    with gm.graph.inserting_before(first):
        gm.graph.call_function(ops.scope_enter.default, (["_user_stream_label"], [label]))
    with gm.graph.inserting_after(last or first):
        gm.graph.call_function(ops.scope_exit.default)


def same_results(fn: Callable[..., Any], gm: fx.GraphModule, *args: torch.Tensor) -> None:
    """The graph still computes what the function does, and leaves the same in its arguments."""
    theirs, ours = [arg.clone() for arg in args], [arg.clone() for arg in args]
    want, got = fn(*theirs), gm(*ours)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(ours, theirs)


def after_all(gm: fx.GraphModule, ctx: PassContext) -> fx.GraphModule:
    """The graph behind all passes of capture mode, for a program that runs ops as they stand there."""
    ctx.switches["runs_op_by_op"] = True
    return run(CAPTURE_PASSES, gm, ctx)
