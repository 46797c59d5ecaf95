"""Fake values of the nodes of a graph: devices, and which values share memory."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.fxgraph.effects import flat, makes_views
from torchair.fxgraph.layout import memory_of


def device_of(gm: fx.GraphModule) -> torch.device:
    """Return the device of the graph: the first accelerator in it, else the CPU."""
    devices = (value.device for node in gm.graph.nodes for value in tensors_of(node))
    return next((device for device in devices if device.type not in ("cpu", "meta")), torch.device("cpu"))


def tensors_of(node: fx.Node) -> Iterator[torch.Tensor]:
    """Yield the fake tensors of a node."""
    yield from (value for value in flat(node.meta.get("val")) if isinstance(value, torch.Tensor))


def is_on_cpu(value: torch.Tensor) -> bool:
    """Return whether the tensor is on the CPU."""
    return value.device.type == "cpu"


def is_device_call(node: fx.Node) -> bool:
    """Return whether a call computes something on a device."""
    return node.op == "call_function" and not all(map(is_on_cpu, tensors_of(node)))


COPIES = (torch.ops.aten.copy.default, torch.ops.aten.copy_.default)
"""Ops that return their first argument and read the second."""
MOVES = (torch.ops.aten._to_copy.default, torch.ops.prims.device_put.default)


def moves_between_devices(node: fx.Node, home: torch.device) -> bool:
    """Return whether a result of this call is on a device that none of its arguments is on. A call without
    tensor arguments must be on the device of the graph, `home`.
    """
    read = node.all_input_nodes[1:] if node.target in COPIES else node.all_input_nodes
    given = {value.device for argument in read for value in tensors_of(argument)} or {home}
    return any(value.device not in given for value in tensors_of(node))


def twin_on(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a fake tensor with the same sizes, strides and dtype on a device."""
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def look_again(graph: fx.Graph, fake_mode: FakeTensorMode) -> None:
    """Compute the views of changed values again, because they refer to other memory now."""
    for node in graph.nodes:
        source: Any = node.args[0] if node.args else None
        value = source.meta.get("val") if isinstance(source, fx.Node) else None
        if node.op != "call_function":
            continue
        if node.target is operator.getitem and isinstance(value, list | tuple):
            node.meta["val"] = value[node.args[1]]
        elif isinstance(value, torch.Tensor) and makes_views(node.target) and _is_elsewhere(node, value):
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with fake_mode:
                node.meta["val"] = node.target(*args, **kwargs)


def _is_elsewhere(node: fx.Node, value: torch.Tensor) -> bool:
    made = node.meta["val"]
    listed = made if isinstance(made, list | tuple) else [made]
    return any(memory_of(one) != memory_of(value) for one in listed)
