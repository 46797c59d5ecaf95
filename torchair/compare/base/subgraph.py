"""Extract parts of an FX graph as separate graphs."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.compare.base.replay_call import Values


@dataclass(frozen=True)
class Subgraph:
    """Some calls of a graph as a separate graph; `inputs` and `outputs` are nodes of the whole graph."""

    gm: fx.GraphModule
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]

    def args(self, values: Values) -> list[Any]:
        """Return the values of its inputs in a run of the whole graph."""
        return [values[node.name] for node in self.inputs]

    def wanted(self, values: Values) -> list[Any]:
        """Return the values of its outputs in a run of the whole graph."""
        return [values[node.name] for node in self.outputs]


def part_of(
    gm: fx.GraphModule, nodes: Collection[fx.Node], outputs: Sequence[fx.Node] | None = None
) -> Subgraph:
    """Extract these calls as a graph. Without `outputs`, it returns all values that other nodes read.

    A call with several results includes all `getitem` nodes of it.
    """
    inside = _closed(nodes)
    calls = [node for node in gm.graph.nodes if node in inside]
    needed = dict.fromkeys(
        source for call in calls for source in call.all_input_nodes if source not in inside
    )
    graph = fx.Graph()
    mapped: dict[fx.Node, fx.Node] = {}
    inputs = [node for node in needed if node.op != "get_attr"]
    for node in inputs:
        mapped[node] = graph.placeholder(node.name)
        mapped[node].meta = dict(node.meta)
    for node in (*(n for n in needed if n.op == "get_attr"), *calls):
        mapped[node] = graph.node_copy(node, lambda source: mapped[source])
    if outputs is None:
        outputs = [call for call in calls if not call.users or any(user not in inside for user in call.users)]
    returned = [node for node in outputs if isinstance(node.meta.get("val"), torch.Tensor)]
    graph.output(tuple(mapped[node] for node in returned))
    return Subgraph(fx.GraphModule(gm, graph), tuple(calls), tuple(inputs), tuple(returned))


def _closed(nodes: Collection[fx.Node]) -> set[fx.Node]:
    """Add the calls that `getitem` nodes belong to, and all `getitem` nodes of a call."""
    whole: list[Any] = [node.args[0] if node.target is operator.getitem else node for node in nodes]
    picked = {user for node in whole for user in node.users if user.target is operator.getitem}
    return {node for node in (*whole, *picked) if isinstance(node, fx.Node) and node.op == "call_function"}


def calls_of(gm: fx.GraphModule) -> list[fx.Node]:
    """Return the calls in order, without `getitem` nodes."""
    return [n for n in gm.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]


def neighborhood(gm: fx.GraphModule, node: fx.Node, levels: int, *, users: bool = False) -> set[fx.Node]:
    """Return the node and the calls up to `levels` steps before it; with `users`, also those that read it."""
    found, edge = {node}, {node}
    for _ in range(levels):
        edge = {s for n in edge for s in n.all_input_nodes if s.op == "call_function"} - found
        found |= edge
    if users:
        found |= {user for user in node.users if user.op == "call_function"}
    return found
