"""wait([x]) -> wait([token]): a token is recorded right after the node that makes `x`."""

from __future__ import annotations

import torch
from torch import fx

from torchair.fxgraph.fake_values import device_of
from torchair.fxgraph.layout import root_of
from torchair.ops.streams import stream_ops
from torchair.passes.pass_manager import PassContext


def apply_event_record(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Record one token per value, shared by all waits for it, on the graph's device."""
    graph, device = gm.graph, device_of(gm)
    tokens: dict[fx.Node, fx.Node] = {}
    records = [node for node in graph.nodes if node.target in stream_ops.RECORD]
    for wait in [node for node in graph.nodes if node.target in stream_ops.WAIT]:
        for value in wait.args[0]:
            if value.target not in stream_ops.RECORD and value not in tokens:
                # A view is ready when the memory that it views is ready.
                tokens[value] = _record(graph, root_of(value)[0], wait.target)
        wait.args = ([tokens.get(value, value) for value in wait.args[0]],)
    for record in [*records, *tokens.values()]:
        if record.kwargs.get("device") is None:
            record.kwargs = {"device": device}
            record.meta["val"] = _token(gm, record, device)
    if tokens or records:
        gm.recompile()
    return len(tokens)


def _record(graph: fx.Graph, value: fx.Node, wait: object) -> fx.Node:
    """Record a token in the namespace of the wait, after the value, or after the last input if it is an
    input.
    """
    inputs = list(graph.find_nodes(op="placeholder"))
    namespace = getattr(torch.ops, wait.namespace)  # type: ignore[attr-defined]
    with graph.inserting_after(inputs[-1] if value.op == "placeholder" else value):
        return graph.call_function(namespace.record.default)


def _token(gm: fx.GraphModule, record: fx.Node, device: torch.device) -> torch.Tensor:
    like = next(node.meta["val"] for node in gm.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor))
    return like.new_empty(0, device=device)
