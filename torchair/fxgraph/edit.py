"""Changes of an FX graph that keep its meaning."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from torchair.core.native.memory_overlap import is_dense
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, graph_module
from torchair.fxgraph.effects import functional_twin
from torchair.fxgraph.fake_values import look_again
from torchair.fxgraph.layout import memory_of


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """Return the graph with new nodes; attributes are shared, not copied."""
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        nodes[node] = graph.node_copy(node, lambda n: nodes[n])
    return graph_module(gm, graph)


def redirect_writes(gm: fx.GraphModule, made: Collection[fx.Node], fake_mode: FakeTensorMode) -> None:
    """Make calls that write the result of one of these nodes return a new result instead."""
    order = {node: place for place, node in enumerate(gm.graph.nodes)}
    for node in order:
        value = node.args[0] if node.args else None
        if node in made or not isinstance(value, fx.Node) or value not in made:
            continue
        twin = functional_twin(node)
        if twin is None or not is_dense(value.meta["val"]):
            continue
        node.target = twin
        for user in [user for user in value.users if order[user] > order[node]]:
            user.replace_input_with(value, node)
        with fake_mode:
            _look_at(node, torch.empty_like(value.meta["val"]))
        look_again(gm.graph, fake_mode)


def _look_at(node: fx.Node, value: torch.Tensor) -> None:
    """Set the value of a node, and of the calls that write it one after the other and return it."""
    before = memory_of(node.meta["val"])
    node.meta["val"] = value
    for user in node.users:
        is_same = user.args[:1] == (node,) and memory_of(user.meta.get("val")) == before
        if is_same and user.meta["val"].shape == value.shape and user.meta["val"].dtype == value.dtype:
            _look_at(user, value)
