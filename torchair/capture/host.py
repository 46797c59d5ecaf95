"""Which ops of a device graph need the host, so that a recording has to stop there; and what can be done so
that fewer do.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import fx

from torchair.core.source import source_of
from torchair.core.torch_private.ops import HigherOrderOperator, OpOverload
from torchair.fxgraph.effects import draws, flat, mutates, written_by
from torchair.fxgraph.symbols import unbacked_in
from torchair.fxgraph.values import tensors_of

aten = torch.ops.aten

READS_DATA = (torch.Tag.data_dependent_output, torch.Tag.cudagraph_unsafe)
BY_MASK = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
    aten._index_put_impl.default,
    aten._index_put_impl_.default,
)
BRANCHES = ("cond", "while_loop")
COPIES = (aten._to_copy.default, aten.copy_.default, aten.copy.default)
# Beside what is pointwise: what every device does with integers.
WHOLE = (aten.flip.default, aten.cat.default, aten.repeat.default, aten.cumsum.default, aten.roll.default)
SAME = (aten.lift_fresh_copy.default, aten.clone.default, aten.detach.default, aten.alias.default)
FILLS = (aten.full.default, aten.scalar_tensor.default, aten.zeros.default, aten.ones.default)
FACTORIES = (*FILLS, aten.arange.default, aten.arange.start, aten.arange.start_step, aten.eye.default)


def why_on_host(gm: fx.GraphModule) -> dict[fx.Node, str]:
    """The calls that need the host, and why."""
    on_device = any(value.device.type != "cpu" for node in gm.graph.nodes for value in tensors_of(node))
    fixed: set[fx.Node] = set()  # values that depend on no input
    found: dict[fx.Node, str] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr" or (_is_pure(node) and all(n in fixed for n in node.all_input_nodes)):
            fixed.add(node)
        reason = _why(node, fixed if on_device else None) if node.op == "call_function" else None
        if reason is not None:
            found[node] = reason
    return found


def _is_pure(node: fx.Node) -> bool:
    """Does a call give the same in every call, of the same arguments?"""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return node.op == "call_function" and not node.is_impure() and not draws(node)
    return target.namespace in ("aten", "prims") and not draws(node) and not mutates(target)


def say(node: fx.Node) -> str:
    """`aten.nonzero.default`, with the line it stands in."""
    return f"{node.target} at {source_of(node)}" if source_of(node) else str(node.target)


def _why(node: fx.Node, fixed: set[fx.Node] | None) -> str | None:
    target: Any = node.target
    tags = target.tags if isinstance(target, OpOverload) else ()
    if any(tag in tags for tag in READS_DATA):
        return "reads a device value on the host"
    if isinstance(target, HigherOrderOperator) and target.name() in BRANCHES:
        return "chooses by a device value"
    if unbacked_in(node.meta.get("val")) - unbacked_in([n.meta.get("val") for n in node.all_input_nodes]):
        return "has a size that depends on data"
    if target in BY_MASK and any(_is_mask(index) for index in flat(node.args[1])):
        return "takes a mask as index, and how many elements it picks the host must know"
    if fixed is None:
        return None
    if _has_cpu_data(node, fixed):
        return "is computed on the CPU"
    if any(_has_cpu_data(source, fixed) for source in node.all_input_nodes):
        return "takes a tensor of the CPU"
    return None


def _has_cpu_data(node: fx.Node, fixed: set[fx.Node]) -> bool:
    """A number that is the same in every call may be read on the CPU: it becomes part of the recording."""
    return any(_is_on_cpu(value) and not (node in fixed and value.dim() == 0) for value in tensors_of(node))


def _is_mask(index: Any) -> bool:
    return isinstance(index, fx.Node) and index.meta["val"].dtype in (torch.bool, torch.uint8)


def _is_on_cpu(value: torch.Tensor) -> bool:
    return value.device.type == "cpu"


# Fewer of them


def move_to_device(gm: fx.GraphModule, device: torch.device) -> int:
    """Constants that are made on the CPU are made on the device, where nothing else changes; a number on the
    CPU, or an index, that a device op takes is copied first. How many nodes were changed or added.
    """
    return _move_constants(gm, device) + _copy_first(gm, device)


def _move_constants(gm: fx.GraphModule, device: torch.device) -> int:
    """Integers and what is filled with one number are the same everywhere; what other arithmetic on floats
    gives may differ in the last bit.
    """
    movable: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if _is_exact(node) and all(source in movable for source in node.all_input_nodes):
            movable.add(node)
    for node in reversed(list(gm.graph.nodes)):
        if node in movable and not all(user in movable or _is_device_call(user) for user in node.users):
            movable.discard(node)
    # Who reads what stays on the CPU stays there, too.
    for node in gm.graph.nodes:
        if node in movable and not all(source in movable for source in node.all_input_nodes):
            movable.discard(node)
    for node in movable:
        if node.op == "get_attr":
            _move_attribute(gm, node, device)
        elif "device" in {argument.name for argument in cast(Any, node.target)._schema.arguments}:
            node.kwargs = {**node.kwargs, "device": device}
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "pin_memory"}
        node.meta["val"] = _on(node.meta["val"], device)
    return len(movable)


def _move_attribute(gm: fx.GraphModule, node: fx.Node, device: torch.device) -> None:
    name = f"{node.target}_on_{device.type}".replace(".", "_")
    gm.register_buffer(name, operator.attrgetter(str(node.target))(gm).to(device), persistent=False)
    node.target = name


def _is_exact(node: fx.Node) -> bool:
    target: Any = node.target
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not _is_on_cpu(value):
        return False
    if node.op == "get_attr" or not isinstance(target, OpOverload):
        return node.op == "get_attr"
    if mutates(target) or draws(node):
        return False
    if not node.all_input_nodes:
        return target in FILLS or (target in FACTORIES and not value.dtype.is_floating_point)
    dtypes = [tensor.dtype for source in (node, *node.all_input_nodes) for tensor in tensors_of(source)]
    is_whole = not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
    is_simple = torch.Tag.pointwise in target.tags or target in WHOLE
    return target.is_view or target in SAME or (is_whole and is_simple)


def _is_device_call(node: fx.Node) -> bool:
    return node.op == "call_function" and any(not _is_on_cpu(value) for value in tensors_of(node))


def _on(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _copy_first(gm: fx.GraphModule, device: torch.device) -> int:
    """A 0-d tensor of the CPU beside tensors of the device, and an index on the CPU."""
    copies: dict[fx.Node, fx.Node] = {}

    def moved(node: fx.Node, user: fx.Node) -> fx.Node:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not _is_on_cpu(value) or node.op == "get_attr":
            return node
        if value.dim() and user.target not in BY_MASK:
            return node
        if node not in copies:
            with gm.graph.inserting_after(node):
                copies[node] = gm.graph.call_function(aten._to_copy.default, (node,), {"device": device})
            copies[node].meta = {**node.meta, "val": _on(value, device)}
        return copies[node]

    changing = set(_depending(gm))
    for node in list(gm.graph.nodes):
        target: Any = node.target
        is_known = isinstance(target, OpOverload) and target.namespace in ("aten", "prims")
        if _is_device_call(node) and is_known and target not in COPIES:
            takes = [n for n in node.all_input_nodes if n in changing and n not in set(written_by(node))]
            given = [value for source in node.all_input_nodes for value in tensors_of(source)]
            if takes and not all(map(_is_on_cpu, given)):
                for source in takes:
                    node.replace_input_with(source, moved(source, node))
    return len(copies)


def _depending(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """What may differ from call to call."""
    seen: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.op == "placeholder" or any(source in seen for source in node.all_input_nodes):
            seen.add(node)
            yield node
