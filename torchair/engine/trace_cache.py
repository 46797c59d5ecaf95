"""Reuse the fake values of repeated ops.

A repeat of a traced op has the sizes, strides and dtype of the first one, so its nodes take over the values
of the first: creating a value with symbolic sizes costs a millisecond, taking one over costs nothing. But a
value also records whose memory it views. Two rules keep that correct:

* A view must view the memory of its own base. If the base is not that of the first op, the node runs again.
* Values that were taken over seem to share memory, although they do not. That is wrong only in one direction
  (an alias too many), but it costs copies where results are returned, and in-place updates where something is
  written. So at the end `separate` runs those nodes, and their views, again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from torchair.core.torch_private.fake.fake_tensors import (
    FakeTensorMode,
    faking,
    snapshot_fake,
    unclaimed_symbols,
)
from torchair.fxgraph.effects import flat, may_write
from torchair.fxgraph.layout import memory_of

_BASES = "bases"


def memories(node: fx.Node) -> set[int]:
    """Return the memory that the value of a node views; a list of tensors views several."""
    found = (memory_of(value) for value in flat(node.meta.get("val")))
    return {memory for memory in found if memory is not None}


def reuse_values(
    node: fx.Node, made: fx.Node, mapped: Mapping[fx.Node, Any], mode: FakeTensorMode
) -> set[int]:
    """Give `made`, a copy of the traced `node`, its value: the traced one unless it views another memory.

    Return the memory that now seems shared: that of the node itself, not that of its bases.
    """
    bases: list[fx.Node] | None = node.meta.get(_BASES)
    if bases is None:
        mine = memories(node)
        bases = node.meta[_BASES] = [base for base in node.all_input_nodes if memories(base) & mine]
    if any(memories(mapped[base]) != memories(base) for base in bases):
        made.meta["val"] = run_on_fakes(made, mode)
        return set()
    made.meta["val"] = _reused(node.meta.get("val"))  # calls that return nothing have no value
    return memories(node).difference(*(memories(base) for base in bases))


def _reused(value: Any) -> Any:
    """Return the same value as a new object: tracers identify tensors by object."""
    if isinstance(value, list | tuple):
        return type(value)(_reused(item) for item in value)
    return snapshot_fake(value) if isinstance(value, torch.Tensor) else value


def run_on_fakes(node: fx.Node, fake_mode: FakeTensorMode) -> Any:
    """Compute the value of a call from the values of its arguments."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda inner: inner.meta["val"])
    with faking(fake_mode), unclaimed_symbols(fake_mode):
        return node.target(*args, **kwargs)  # type: ignore[operator]


SHARED = "values taken over"
"""Meta key of a lowered graph for the memory of values that were taken over."""


def separate_all(gm: fx.GraphModule, fake_mode: FakeTensorMode) -> None:
    """Give every node its own value: partitioning queries for all nodes which ones share memory."""
    shared = gm.meta.pop(SHARED, None)
    if shared:
        calls = [node for node in gm.graph.nodes if node.op == "call_function"]
        unshare(gm.graph, calls, shared, fake_mode)


def unshare(
    graph: fx.Graph, returned: Iterable[fx.Node], shared: set[int], fake_mode: FakeTensorMode
) -> None:
    """Give returned or written nodes their own values if they were taken over; their views follow.

    `shared` is the memory of values that were taken over.
    """
    asked = list(returned)
    for node in graph.nodes:
        if may_write(node.target):
            asked += [node, *node.all_input_nodes]
    roots = {_root(node) for node in asked if memories(node) & shared}
    before: dict[fx.Node, set[int]] = {}
    for node in graph.nodes if roots else ():
        mine = memories(node)
        views_new = any(before[base] & mine for base in node.all_input_nodes if base in before)
        if node.op == "call_function" and (node in roots or views_new):
            before[node] = mine
            node.meta["val"] = run_on_fakes(node, fake_mode)


def _root(node: fx.Node) -> fx.Node:
    """Return the node that allocated the memory that a node views."""
    mine = memories(node)
    while bases := [base for base in node.all_input_nodes if memories(base) & mine]:
        node = bases[0]
    return node
