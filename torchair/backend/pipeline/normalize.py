"""Bring a graph into the form that all steps of a compile expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchair.backend.pipeline.context import GraphInfo
from torchair.backend.pipeline.inline_regions import inline_regions
from torchair.core.torch_private.fake.fake_tensors import (
    FakeTensorMode,
    ShapeEnv,
    detect_fake_mode,
    fake_tensor_prop,
)
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.external_constants import mark_external
from torchair.fxgraph.fake_values import device_of
from torchair.ge.graph import Graph


def normalize_graph(gm: fx.GraphModule, inputs: Sequence[Any]) -> tuple[fx.GraphModule, GraphInfo]:
    """Return a copy of the graph whose nodes all have values of one fake mode, and the facts about it."""
    gm = copy_graph(gm)
    mark_external(gm)
    has_new_nodes = inline_regions(gm) > 0
    returned = gm.graph.output_node().args[0]
    if not isinstance(returned, list | tuple):
        # One tensor is a list of one: every later step expects a list.
        gm.graph.output_node().args = ((returned,),)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    fake_mode = detect_fake_mode(list(inputs)) or FakeTensorMode(
        shape_env=ShapeEnv(),
        allow_non_fake_inputs=True,  # constants of the graph
    )
    fakes = [_fake(value, node, fake_mode) for value, node in zip(inputs, placeholders, strict=True)]
    for node, value in zip(placeholders, fakes, strict=True):
        node.meta["val"] = value
    if has_new_nodes or _lacks_values(gm) or _is_foreign(gm, fake_mode):
        fake_tensor_prop(gm, fake_mode, fakes)
    calls = len([node for node in gm.graph.nodes if node.op == "call_function"])
    return gm, GraphInfo(fakes, fake_mode, device_of(gm), Graph().name, calls)


def _fake(value: Any, node: fx.Node, fake_mode: FakeTensorMode) -> Any:
    if not isinstance(value, torch.Tensor) or _mode(value) is fake_mode:
        return value
    known = node.meta.get("val")
    return known if _mode(known) is fake_mode else fake_mode.from_tensor(value, static_shapes=True)


def _mode(value: Any) -> Any:
    return getattr(value, "fake_mode", None)


def _lacks_values(gm: fx.GraphModule) -> bool:
    return any("val" not in node.meta for node in gm.graph.nodes if node.op == "call_function")


def _is_foreign(gm: fx.GraphModule, fake_mode: FakeTensorMode) -> bool:
    """Do values in the graph belong to another fake mode than the inputs?"""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            return _mode(value) is not fake_mode
    return False
