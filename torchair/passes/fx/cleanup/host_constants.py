"""Compute constants that a device graph creates on the CPU at compile time, or create them on the device."""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from torchair.core.torch_private.fake.fake_tensors import disable_modes
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import draws, makes_views, mutates, written_by
from torchair.fxgraph.fake_values import MOVES, device_of, is_device_call, is_on_cpu, tensors_of, twin_on
from torchair.passes.pass_manager import PassContext

aten = torch.ops.aten

MAX_BYTES = 1 << 24
"""Largest result in bytes that is stored in the program; larger ones are computed in every call."""
# Besides pointwise ops: integer ops that give equal results on every device.
WHOLE = (aten.flip.default, aten.cat.default, aten.repeat.default, aten.cumsum.default, aten.roll.default)
SAME = (aten.lift_fresh_copy.default, aten.clone.default, aten.detach.default, aten.alias.default)
FILLS = (aten.full.default, aten.scalar_tensor.default, aten.zeros.default, aten.ones.default)
FACTORIES = (*FILLS, aten.arange.default, aten.arange.start, aten.arange.start_step, aten.eye.default)
ARITHMETIC = (
    *("add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "fmod", "pow"),
    *("maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign"),
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"),
    *("bitwise_and", "bitwise_or", "bitwise_xor"),
)


def move_host_constants(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Fold host constants or move them to the device; return how many nodes changed."""
    device = device_of(gm)
    changed = 0 if device.type == "cpu" else fold(gm) + fill_with_numbers(gm) + move(gm, device)
    if changed:
        gm.recompile()
    return changed


# A value that depends on no input is bit-identical in every call.


def fold(gm: fx.GraphModule) -> int:
    """Replace what the CPU computes from constants, and its copies on the device, by the result."""
    values: dict[fx.Node, Any] = {}
    with disable_modes(), torch.no_grad():
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(gm)
                if isinstance(value, torch.Tensor) and is_on_cpu(value):
                    values[node] = value
            elif _is_foldable(node) and all(source in values for source in node.all_input_nodes):
                args, kwargs = map_arg((node.args, node.kwargs), lambda source: values[source])
                values[node] = node.target(*args, **kwargs)
    folded = [node for node in values if node.op != "get_attr"]
    for node in folded:
        users = [user for user in node.users if user not in values]
        if users and isinstance(values[node], torch.Tensor):
            _replace(gm, node, values[node], users)
    for node in reversed(values):
        if not node.users:
            gm.graph.erase_node(node)
    return len(folded)


def _is_foldable(node: fx.Node) -> bool:
    """Return whether the call only computes small tensors on the CPU, or only moves them."""
    target: Any = node.target
    results = list(tensors_of(node))
    if (
        node.op != "call_function"
        or not results
        or any(isinstance(n, torch.SymInt) for v in results for n in v.shape)
    ):
        return False
    if not all(map(is_on_cpu, results)) and target not in MOVES:
        return False
    is_pure = target is operator.getitem or (
        isinstance(target, OpOverload)
        and target.namespace in ("aten", "prims")
        and not mutates(target)
        and not draws(node)
    )
    return is_pure and sum(value.nbytes for value in results) <= MAX_BYTES


def _replace(gm: fx.GraphModule, node: fx.Node, value: torch.Tensor, users: list[fx.Node]) -> None:
    """Replace a node by a constant; readers that may alias or write the memory get a copy."""
    name = f"_folded_{node.name}"
    gm.register_buffer(name, value, persistent=False)
    fake_mode = next(tensors_of(node)).fake_mode  # type: ignore[attr-defined]
    with gm.graph.inserting_before(node):
        constant = gm.graph.get_attr(name)
    constant.meta = {**node.meta, "val": fake_mode.from_tensor(value, static_shapes=True)}
    for user in users:
        given = constant
        if user.op == "output" or node in written_by(user) or makes_views(user.target):
            with gm.graph.inserting_before(user):
                given = gm.graph.call_function(aten.lift_fresh_copy.default, (constant,))
            given.meta = dict(node.meta)
        user.replace_input_with(node, given)


def fill_with_numbers(gm: fx.GraphModule) -> int:
    """Turn constant values of `masked_fill` into numbers.

    With a tensor, `masked_fill` synchronizes with the device, which cannot be recorded.
    """
    found = 0
    for node in gm.graph.find_nodes(op="call_function", target=aten.masked_fill.Tensor):
        number = _number(gm, node.args[2])
        if number is not None:
            node.target, node.args = aten.masked_fill.Scalar, (*node.args[:2], number)
            found += 1
    return found


def _number(gm: fx.GraphModule, node: Any) -> Any:
    """Return the number that a node has in every call if it is constant."""
    if node.op == "get_attr":
        value = operator.attrgetter(str(node.target))(gm)
        with disable_modes():
            return value.item() if is_on_cpu(value) and value.dim() == 0 else None
    place = 1 if node.target is aten.full.default else 0
    is_fill = node.target in (aten.full.default, aten.scalar_tensor.default)
    number = node.args[place] if is_fill else None
    # Its dtype may round the number.
    return _rounded(number, node.meta["val"].dtype) if isinstance(number, int | float | bool) else None


def _rounded(number: float, dtype: torch.dtype) -> Any:
    with disable_modes():
        return torch.tensor(number, dtype=dtype).item()


# Values with symbolic sizes are created on the device.


def move(gm: fx.GraphModule, device: torch.device) -> int:
    """Create integers and single-number fills on the device, where they are equal to those of the CPU.

    Other floating-point arithmetic may differ in the last bit.
    """
    movable: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if _is_exact(node) and all(source in movable for source in node.all_input_nodes):
            movable.add(node)
    for node in reversed(list(gm.graph.nodes)):
        if node in movable and not all(
            user in movable or _wants_on_device(user, node) for user in node.users
        ):
            movable.discard(node)
    # Nodes that read a value which stays on the CPU stay there, too.
    for node in gm.graph.nodes:
        if node in movable and not all(source in movable for source in node.all_input_nodes):
            movable.discard(node)
    for node in movable:
        if node.op == "get_attr":
            _move_attribute(gm, node, device)
        elif "device" in {argument.name for argument in cast(Any, node.target)._schema.arguments}:
            node.kwargs = {**node.kwargs, "device": device}
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "pin_memory"}
        node.meta["val"] = twin_on(node.meta["val"], device)
    return len(movable)


def _is_exact(node: fx.Node) -> bool:
    target: Any = node.target
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not is_on_cpu(value):
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


def _wants_on_device(user: fx.Node, node: fx.Node) -> bool:
    """Return whether `user` should read `node` from the device.

    Arithmetic passes a CPU number as a kernel argument, and computes differently with a number on the device:
    a division becomes a product with the inverse. Other ops would copy the number in every call.
    """
    target: Any = user.target
    is_op = isinstance(target, OpOverload) and target.namespace == "aten"
    is_arithmetic = is_op and target._schema.name.removeprefix("aten::") in ARITHMETIC
    return is_device_call(user) and not (is_arithmetic and node.meta["val"].dim() == 0)


def _move_attribute(gm: fx.GraphModule, node: fx.Node, device: torch.device) -> None:
    name = f"{node.target}_on_{device.type}".replace(".", "_")
    with disable_modes():
        gm.register_buffer(name, operator.attrgetter(str(node.target))(gm).to(device), persistent=False)
    node.target = name
