"""Split a graph into a part for a native library and a part that stays in Python.

* *bound* inputs (static ones) and tensor constants become constants of the library, bound by address: nothing
  is copied, and a write to one of them is a write to the caller's tensor.
* *passed* inputs are the other tensors. Sizes are read from them, so symbols are not passed. A symbol that is
  not the size of a passed tensor is passed as the length of a carrier, a tensor of one byte expanded to that
  length.
* *host* outputs (numbers, views of inputs and inputs themselves) are computed in Python: a library returns
  only tensors, and would copy a view of a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchair.codegen.base import graph_prep
from torchair.core.errors import NotPossible
from torchair.core.torch_private.fake.fake_tensors import disable_modes, free_symbols, lower_bound
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import written_by
from torchair.fxgraph.fake_values import device_of
from torchair.fxgraph.placeholders import output, placeholders, returned
from torchair.fxgraph.size_nodes import expression_nodes

aten = torch.ops.aten
NUMBERS = (bool, int, float, torch.SymBool, torch.SymInt, torch.SymFloat)


@dataclass
class HostDeviceSplit:
    """A graph for the library, a graph for Python, and how inputs and outputs are distributed."""

    library: fx.GraphModule
    examples: list[torch.Tensor]
    """Fake inputs of the library."""
    host: fx.GraphModule | None = None
    bound: list[int] = field(default_factory=list)
    """Indices of inputs bound by address; their names in the library follow."""
    bound_names: list[str] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    """Tensors of the graph itself, by their names in the library."""
    passed: list[int] = field(default_factory=list)
    carriers: list[int] = field(default_factory=list)
    """Indices of inputs that are numbers, passed as lengths after the passed tensors."""
    places: list[tuple[bool, int]] = field(default_factory=list)
    """For each output: whether the library computes it, and its index in the library's or Python's
    results.
    """


def split(gm: fx.GraphModule, static: Sequence[int]) -> HostDeviceSplit:
    """Split `gm`, which is changed.

    Raises:
        NotPossible: if a library cannot compute its part.
    """
    parts = HostDeviceSplit(gm, [])
    outputs = list(returned(gm))
    _place_outputs(parts, outputs)
    parts.host = _host_graph(gm, [v for v, place in zip(outputs, parts.places, strict=True) if not place[0]])
    native = list(dict.fromkeys(v for v, place in zip(outputs, parts.places, strict=True) if place[0]))
    output(gm).args = (tuple(native),)
    gm.graph.eliminate_dead_code(is_impure_node=graph_prep.has_effect)
    if not native and not any(written_by(node) for node in gm.graph.nodes):
        raise NotPossible("the graph has no tensor results, so there is nothing to compile")
    _name_constants(parts)
    _assign_inputs(parts, set(static))
    gm.recompile()
    return parts


def _place_outputs(parts: HostDeviceSplit, outputs: Sequence[Any]) -> None:
    native: dict[fx.Node, int] = {}
    hosts = 0
    for value in outputs:
        if is_host(value):
            parts.places.append((False, hosts))
            hosts += 1
        else:
            parts.places.append((True, native.setdefault(value, len(native))))


def is_host(value: Any) -> bool:
    """Return whether the value is a number, an input, or a view of an input. Python computes it from the
    arguments alone.
    """
    return is_number(value) or _from_arguments(value)


def is_number(value: Any) -> bool:
    """Return whether the value is not a tensor: a constant of the graph, or a node with a number."""
    return not isinstance(value, fx.Node) or isinstance(value.meta.get("val"), NUMBERS)


def _from_arguments(value: fx.Node) -> bool:
    if value.op == "placeholder":
        return True
    is_view = isinstance(value.target, OpOverload) and value.target.is_view
    return (is_view or is_number(value)) and all(_from_arguments(used) for used in value.all_input_nodes)


def _host_graph(gm: fx.GraphModule, values: Sequence[Any]) -> fx.GraphModule | None:
    if not values:
        return None
    host = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" or (node.op == "call_function" and _from_arguments(node)):
            nodes[node] = host.node_copy(node, lambda n: nodes[n])
    symbols: dict[Any, fx.Node] = {}
    results = [_host_value(host, nodes, symbols, value) for value in values]
    host.output(tuple(results))
    host.eliminate_dead_code()
    return fx.GraphModule(gm, host)


def _host_value(
    host: fx.Graph, nodes: dict[fx.Node, fx.Node], symbols: dict[Any, fx.Node], value: Any
) -> Any:
    """Return Python's node for one output; an intermediate number is computed again from the symbols."""
    if not isinstance(value, fx.Node):
        return value
    if value in nodes:
        return nodes[value]
    if not symbols:
        _find_symbols(host, symbols)
    try:
        return expression_nodes(host, symbols, value.meta["val"])
    except KeyError as error:
        raise NotPossible(
            f"output {value.name} is a number that depends on data, but libraries return only tensors",
            next="use codegen inductor for this graph",
        ) from error


def _find_symbols(host: fx.Graph, symbols: dict[Any, fx.Node]) -> None:
    """Map each symbol to a node: its own input, or the size of an input."""
    for node in host.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            symbols.setdefault(value.node.expr, node)
        for dim, size in enumerate(value.size()) if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and size.node.expr not in symbols:
                symbols[size.node.expr] = host.call_function(aten.sym_size.int, (node, dim))
                symbols[size.node.expr].meta["val"] = size


def _name_constants(parts: HostDeviceSplit) -> None:
    """Replace single numbers among the tensors of the graph by literals, and give the others valid names."""
    gm = parts.library
    names: dict[str, str] = {}
    for node in list(gm.graph.find_nodes(op="get_attr")):
        value = graph_prep.attribute(gm, str(node.target))
        if not isinstance(value, torch.Tensor):
            continue
        written = any(node in written_by(user) for user in node.users)
        if value.dim() == 0 and not written and value.device.type == "cpu":
            _replace_by_literal(node, value)
            continue
        name = names.setdefault(str(node.target), f"constant_{len(names)}")
        parts.constants[name] = value
        gm.register_buffer(name, value)
        node.target = name


def _replace_by_literal(node: fx.Node, value: torch.Tensor) -> None:
    with node.graph.inserting_before(node):
        options = {"dtype": value.dtype, "device": value.device}
        literal = node.graph.call_function(aten.full.default, ([], value.item()), options)
    literal.meta.update(node.meta)
    node.replace_all_uses_with(literal)
    node.graph.erase_node(node)


def _assign_inputs(parts: HostDeviceSplit, static: set[int]) -> None:
    """Bind each input, pass it, replace it by a size, or drop it."""
    nodes = placeholders(parts.library)
    start = next(node for node in parts.library.graph.nodes if node.op != "placeholder")
    numbers: list[tuple[int, fx.Node]] = []
    tensors: list[fx.Node] = []
    for index, node in enumerate(nodes):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            numbers.append((index, node))
        elif index in static and not free_symbols(value):
            _bind(parts, index, node, start)
        else:
            tensors.append(node)
            parts.passed.append(index)
            parts.examples.append(value)
    for index, node in numbers:
        if node.users:
            _replace_number(parts, index, node, tensors, start)
        node.graph.erase_node(node)


def _bind(parts: HostDeviceSplit, index: int, node: fx.Node, start: fx.Node) -> None:
    """Turn an input with a constant address into a constant of the library."""
    if node.users:
        name = f"bound_{index}"
        parts.bound.append(index)
        parts.bound_names.append(name)
        parts.library.register_buffer(name, _stand_in(node.meta["val"]))
        with node.graph.inserting_before(start):
            constant = node.graph.get_attr(name)
        constant.meta.update(node.meta)
        node.replace_all_uses_with(constant)
    node.graph.erase_node(node)


def _stand_in(value: torch.Tensor) -> torch.Tensor:
    """Return memory of the right shape that is never read: Inductor distinguishes constants by address."""
    with disable_modes():
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)


def _replace_number(
    parts: HostDeviceSplit, index: int, node: fx.Node, tensors: Sequence[fx.Node], start: fx.Node
) -> None:
    """Replace a number by a literal, the size of a passed tensor, or the length of a carrier."""
    value = node.meta.get("val")
    if isinstance(value, (bool, int, float)):
        for user in list(node.users):
            user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), lambda n: value if n is node else n)
        return
    if not isinstance(value, torch.SymInt):
        raise NotPossible(
            f"input {node.name} is a {type(value).__name__}, but a native library accepts only tensors"
        )
    source = _size_source(value, tensors) or (_carrier(parts, index, node), 0)
    with node.graph.inserting_before(start):
        size = node.graph.call_function(aten.sym_size.int, source)
    size.meta["val"] = value
    node.replace_all_uses_with(size)


def _size_source(value: torch.SymInt, tensors: Sequence[fx.Node]) -> tuple[fx.Node, int] | None:
    for tensor in tensors:
        for dim, size in enumerate(tensor.meta["val"].size()):
            if isinstance(size, torch.SymInt) and size.node.expr == value.node.expr:
                return tensor, dim
    return None


def _carrier(parts: HostDeviceSplit, index: int, node: fx.Node) -> fx.Node:
    value = node.meta["val"]
    if lower_bound(value) < 0:
        raise NotPossible(
            f"input {node.name} is a number that may be negative and is not the size of a tensor",
            next="pass it as a tensor, or use codegen inductor for this graph",
        )
    last = placeholders(parts.library)[-1]
    with node.graph.inserting_after(last):
        carrier = node.graph.placeholder(f"carrier_{index}")
    device = device_of(parts.library)
    fake = graph_prep.fake_mode_of(parts.library, ())
    assert fake is not None, "a graph with symbols has a fake mode"
    with value.node.shape_env.suppress_guards(), fake:
        carrier.meta["val"] = torch.empty(1, dtype=torch.uint8, device=device).expand(value)
    parts.carriers.append(index)
    parts.examples.append(carrier.meta["val"])
    return carrier
