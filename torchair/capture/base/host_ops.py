"""Find the ops of a device graph that need the CPU, where a recording must stop; reduce their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from torchair.core.source_location import source_of
from torchair.core.torch_private.operators.schemas import HigherOrderOperator, OpOverload
from torchair.devices import get_device
from torchair.fxgraph.effects import BY_INDEX, flat, written_by
from torchair.fxgraph.fake_values import device_of, is_device_call, is_on_cpu, tensors_of, twin_on
from torchair.fxgraph.symbols import unbacked_in
from torchair.ops.io import print_tensor, save_tensor

aten = torch.ops.aten

READS_DATA = (torch.Tag.data_dependent_output, torch.Tag.cudagraph_unsafe)
BRANCHES = ("cond", "while_loop")
ON_HOST = print_tensor.OPS | save_tensor.OPS
COPIES = (aten._to_copy.default, aten.copy_.default, aten.copy.default)


def host_op_reasons(gm: fx.GraphModule) -> dict[fx.Node, str]:
    """Return the nodes that need the CPU, with the reasons."""
    device_of_graph = _graph_device(gm)
    found: dict[fx.Node, str] = {}
    for node in gm.graph.nodes:
        reason = _reason(node, device_of_graph) if node.op == "call_function" else None
        if reason is not None:
            found[node] = reason
    return found


def _graph_device(gm: fx.GraphModule) -> torch.device:
    """Return the device of the graph, or `meta` if its only tensors have no data."""
    devices = [value.device for node in gm.graph.nodes for value in tensors_of(node)]
    meta = torch.device("meta")
    device_of_graph = device_of(gm)
    return meta if device_of_graph.type == "cpu" and meta in devices else device_of_graph


def describe_node(node: fx.Node) -> str:
    """Return the name of the op with its source line: `aten.nonzero.default at model.py:3`."""
    return f"{node.target} at {source_of(node)}" if source_of(node) else str(node.target)


def _reason(node: fx.Node, device_of_graph: torch.device) -> str | None:
    target: Any = node.target
    tags = target.tags if isinstance(target, OpOverload) else ()
    if any(tag in tags for tag in READS_DATA):
        return "reads a device value on the CPU"
    if isinstance(target, HigherOrderOperator) and target.name() in BRANCHES:
        return "chooses a branch by a device value"
    if unbacked_in(node.meta.get("val")) - unbacked_in([n.meta.get("val") for n in node.all_input_nodes]):
        return "has a size that depends on data"
    if target in BY_INDEX and any(_is_mask(index) for index in flat(node.args[1])):
        return "is indexed with a mask, and the CPU must know how many elements the mask selects"
    if device_of_graph.type == "cpu":
        return None
    if target in ON_HOST and not get_device(device_of_graph).calls_host:
        return "runs on the CPU"
    if other := _other_device(node, device_of_graph):
        return f"is computed on {other}"
    if other := next(
        filter(None, (_other_device(given, device_of_graph) for given in node.all_input_nodes)), None
    ):
        return f"reads a tensor on {other}"
    return None


def _other_device(node: fx.Node, device_of_graph: torch.device) -> str | None:
    """Return the other device that holds data of a node, if any. Constant numbers on the CPU do not count:
    they become part of the recording.
    """
    for value in tensors_of(node):
        if is_on_cpu(value) and (node.op != "get_attr" or value.dim() > 0):
            return "the CPU"
        if value.device not in (device_of_graph, torch.device("cpu"), torch.device("meta")):
            return str(value.device)
    return None


def _is_mask(index: Any) -> bool:
    return isinstance(index, fx.Node) and index.meta["val"].dtype in (torch.bool, torch.uint8)


# Reduce their number


def copy_first(gm: fx.GraphModule, device: torch.device) -> int:
    """Copy CPU scalars and indices to the device before device ops read them. Return the number of copies."""
    copies: dict[fx.Node, fx.Node] = {}

    def moved(node: fx.Node, user: fx.Node) -> fx.Node:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not is_on_cpu(value) or node.op == "get_attr":
            return node
        if value.dim() and user.target not in BY_INDEX:
            return node
        if node not in copies:
            with gm.graph.inserting_after(node):
                copies[node] = gm.graph.call_function(aten._to_copy.default, (node,), {"device": device})
            copies[node].meta = {**node.meta, "val": twin_on(value, device)}
        return copies[node]

    changing = set(_call_dependent(gm))
    for node in list(gm.graph.nodes):
        target: Any = node.target
        is_known = isinstance(target, OpOverload) and target.namespace in ("aten", "prims")
        if is_device_call(node) and is_known and target not in COPIES:
            takes = [n for n in node.all_input_nodes if n in changing and n not in set(written_by(node))]
            given = [value for source in node.all_input_nodes for value in tensors_of(source)]
            if takes and not all(map(is_on_cpu, given)):
                for source in takes:
                    node.replace_input_with(source, moved(source, node))
    return len(copies)


def _call_dependent(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the nodes whose values may differ from call to call."""
    seen: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.op == "placeholder" or any(source in seen for source in node.all_input_nodes):
            seen.add(node)
            yield node
