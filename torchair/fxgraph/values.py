"""The fake values of the nodes of a graph: passes ask them who shares memory with whom."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from torchair.core.torch_private import FakeTensorMode, OpOverload
from torchair.fxgraph.layout import memory_of


def look_again(graph: fx.Graph, fake_mode: FakeTensorMode) -> None:
    """Views of a value that has changed look at other memory now."""
    for node in graph.nodes:
        source: Any = node.args[0] if node.args else None
        value = source.meta.get("val") if isinstance(source, fx.Node) else None
        if node.op != "call_function":
            continue
        if node.target is operator.getitem and isinstance(value, list | tuple):
            node.meta["val"] = value[node.args[1]]
        elif isinstance(value, torch.Tensor) and _makes_views(node.target) and _is_elsewhere(node, value):
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with fake_mode:
                node.meta["val"] = node.target(*args, **kwargs)


def returns_views(target: Any) -> bool:
    """Does the schema say that a result shares memory with an argument?"""
    return isinstance(target, OpOverload) and any(r.alias_info is not None for r in target._schema.returns)


def _makes_views(target: Any) -> bool:
    return returns_views(target) and not target._schema.is_mutable


def _is_elsewhere(node: fx.Node, value: torch.Tensor) -> bool:
    made = node.meta["val"]
    listed = made if isinstance(made, list | tuple) else [made]
    return any(memory_of(one) != memory_of(value) for one in listed)
