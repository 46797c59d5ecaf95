"""GE graph -> FX' of ATen calls: run every kernel under a tracer, with Inductor's decompositions.

The result has the placeholders of the original FX graph, in the same order, and stays symbolic: a size is a
`SymInt` of the same shape environment, written in the graph as arithmetic on placeholders and `sym_size`.

Tracing one op costs milliseconds, and models are repeated layers. So an op is traced once per (type,
attributes, input specs with strides); for a repeat the traced nodes are copied and only run on fake tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import fx

from torchair.core.errors import BadGraph, first_line
from torchair.core.torch_private.fake.fake_tensors import (
    DATA_ERRORS,
    FakeTensorMode,
    faking,
    graph_module,
    is_unbacked,
    make_fx,
    reset_unbacked_symbol_memo,
)
from torchair.engine.evaluate import Value, constant, evaluate, flat_values
from torchair.engine.execution_order import writes_last
from torchair.engine.infer import makes_symbols, op_key
from torchair.engine.kernels.control import control_node, is_number_input, shaped_for_torch
from torchair.engine.op_placement import OpPlacement
from torchair.engine.registry import as_host, is_pure_writer
from torchair.engine.trace_cache import SHARED, reuse_values, separate_all, unshare
from torchair.fxgraph.external_constants import HELD
from torchair.fxgraph.layout import Layout, layout_of, lies, materialize_layout, memory_of
from torchair.fxgraph.size_nodes import expression_nodes
from torchair.fxgraph.symbols import is_symbol
from torchair.ge.builder.random_state import FROM_GENERATOR
from torchair.ge.builder.torch_kernel_binding import inputs_of, skipped
from torchair.ge.graph import (
    INPUT_TYPES,
    OUTPUT_TYPE,
    AliasResult,
    ArgumentFeed,
    ConstantResult,
    Feed,
    Graph,
    NumberResult,
    Op,
    PackFeed,
    RandomFeed,
    Result,
    Tensor,
    TensorResult,
    describe,
)
from torchair.ge.host import Host, host_dtype

Decompositions = Mapping[Any, Callable[..., Any]]


class KernelFailed(BadGraph):
    """The kernel of an op failed while the op was lowered."""

    def __init__(self, op: Op, error: Exception, inputs: str) -> None:
        super().__init__(
            f"the kernel of {op.type} failed on {op.name}: {first_line(error)}", at=_source(op), got=inputs
        )
        self.op = op


@dataclass
class TracedOp:
    """One op as ATen: a graph module whose inputs are the op's tensors, then its symbols."""

    gm: fx.GraphModule
    # For every output of the op: a node of `gm`, or a host value.
    results: list[fx.Node | Host]


@dataclass
class Lowering:
    """Hold the FX' under construction."""

    fake_mode: FakeTensorMode
    device: torch.device
    decompositions: Decompositions
    parts: Mapping[str, Graph]
    graph: fx.Graph = field(default_factory=fx.Graph)
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    placeholders: list[fx.Node] = field(default_factory=list)
    # The node that carries each symbol (by its sympy name), and nodes of whole expressions of them.
    symbols: dict[Any, fx.Node] = field(default_factory=dict)
    values: dict[Tensor, fx.Node | Host] = field(default_factory=dict)
    traced: dict[Hashable, TracedOp] = field(default_factory=dict)
    constants: dict[int, str] = field(default_factory=dict)
    # The FX storage of a result (an argument: None), by its storage here.
    owners: dict[int | None, int | None] = field(default_factory=dict)
    # The memory of values that repeats have taken over.
    shared: set[int] = field(default_factory=set)

    def value(self, tensor: Tensor) -> Value:
        """Return the fake tensor or host value on an edge."""
        found = self.values[tensor]
        return found if isinstance(found, Host) else found.meta["val"]


def lower(
    graph: Graph,
    placeholders: Sequence[tuple[str, Any]],
    fake_mode: FakeTensorMode,
    device: torch.device,
    decompositions: Decompositions,
    parts: Mapping[str, Graph] | None = None,
) -> fx.GraphModule:
    """Lower a GE graph to ATen calls.

    `placeholders` are the names and fake values of the flat arguments, in order; `parts` are the sub-graphs
    of the main graph that ops may name.
    """
    state = Lowering(fake_mode, device, decompositions, graph.subgraphs if parts is None else parts)
    reset_unbacked_symbol_memo(fake_mode)
    for name, value in placeholders:
        node = state.graph.placeholder(name)
        node.meta["val"] = value
        state.placeholders.append(node)
    # Numbers first: a symbol that is an argument itself need not be read from a tensor.
    for node in sorted(state.placeholders, key=lambda node: isinstance(node.meta["val"], torch.Tensor)):
        _bind_symbols(state, node)
    needless, placed, without = _needless_moves(graph), OpPlacement(graph, state.graph), skipped(graph)
    with torch.no_grad():
        for op in writes_last(graph):
            if op in without:
                continue
            if op in needless:
                state.values[op.outputs[0]] = state.values[op.inputs[0]]
            else:
                _lower_op(state, graph, op)
                placed.add(op)
        arguments = [node.meta["val"] for node in state.placeholders]
        returned = [state.values[tensor] for tensor in graph.returned]
        nodes = [node for node in returned if isinstance(node, fx.Node)]
        unshare(state.graph, nodes, state.shared, fake_mode)
        # A constant belongs to the graph: a caller that receives one could write to it.
        constants = [node.meta.get("val") for node in state.graph.find_nodes(op="get_attr")]
        state.owners = {memory_of(value): None for value in (*arguments, *constants)}
        outputs = [_output(state, result) for result in graph.results]
        _lay_out(state, graph.results, outputs)
    state.graph.output(tuple(outputs))
    gm = graph_module(state.root, state.graph, "Lowered")
    gm.meta[SHARED] = state.shared
    gm.graph.eliminate_dead_code()
    if placed.is_needed:
        separate_all(gm, fake_mode)  # passes that place nodes on streams check which nodes share memory
    gm.recompile()
    return gm


def _needless_moves(graph: Graph) -> set[Op]:
    """Return copies before in-place device ops that only new-tensor kernels read: they are omitted.

    A cache that is updated and assigned back is then written in place, without a full copy.
    """
    uses = graph.consumers()
    moves = [op for op in graph.ops if op.type == "TensorMove" and op.outputs[0] in uses]
    return {op for op in moves if all(is_pure_writer(user.type) for user, _ in uses[op.outputs[0]])}


def _lower_op(state: Lowering, graph: Graph, op: Op) -> None:
    if op.type == OUTPUT_TYPE:
        return
    if op.type in INPUT_TYPES:
        state.values[op.outputs[0]] = _input(state, graph.feeds[op.name])
        return
    if op.subgraphs:
        _lower_control(state, op)
        return
    if op.type == "Const":
        value = constant(op, state.device)
        made = value if isinstance(value, Host) else _attribute(state, value)
        if isinstance(made, fx.Node) and HELD in op.attrs:
            made.meta[HELD] = True
        state.values[op.outputs[0]] = made
        return
    key = op_key(op, state.value, strides=True)
    try:
        traced = state.traced.get(key) if key is not None else None
        first_time = traced is None
        if traced is None:
            traced = _trace(state, op)
            if key is not None and not makes_symbols(op, [_fake(result) for result in traced.results]):
                state.traced[key] = traced
        made = _inline(state, traced, op, first_time)
    except Exception as error:
        read = inputs_of(op)
        inputs = ", ".join(
            f"{slot.name} {describe(state.value(slot.tensor))}" for slot in op.slots if slot.tensor in read
        )
        raise KernelFailed(op, error, inputs) from error
    state.values.update(zip(op.outputs, made, strict=True))


def _input(state: Lowering, feed: Feed) -> fx.Node | Host:
    match feed:
        case RandomFeed(count):
            return Host((FROM_GENERATOR,) * count)
        case PackFeed(indices):
            return Host(tuple(state.placeholders[index].meta["val"] for index in indices))
        case ArgumentFeed(index):
            node = state.placeholders[index]
            value = node.meta["val"]
            return node if isinstance(value, torch.Tensor) else Host(value, host_dtype(value))


def _lower_control(state: Lowering, op: Op) -> None:
    """Lower If and While to torch's own control flow, with lowered sub-graphs."""
    parts = [state.parts[name] for name in op.subgraphs]
    inputs = [
        _fx_argument(state, tensor, is_number_input(op, number, parts[0]))
        for number, tensor in enumerate(op.inputs)
    ]
    fakes = [item.meta["val"] if isinstance(item, fx.Node) else item for item in inputs]
    modules: list[fx.GraphModule] = []
    for part in parts:
        given = fakes[len(fakes) - len(part.inputs) :]
        named = [(data.name, value) for data, value in zip(part.inputs, given, strict=True)]
        modules.append(lower(part, named, state.fake_mode, state.device, state.decompositions, state.parts))
    shaped_for_torch(op, parts, modules)
    attributes = [_attribute(state, module) for module in modules]
    call, count = control_node(state.graph, op, inputs, parts, attributes)
    call.meta["val"] = tuple(output.meta for output in op.outputs[:count])
    for number, output in enumerate(op.outputs):
        if number >= count:
            state.values[output] = state.values[op.inputs[number]]
            continue
        made = state.graph.call_function(operator.getitem, (call, number))
        made.meta["val"] = output.meta
        state.values[output] = made
        _bind_symbols(state, made)


def _fx_argument(state: Lowering, tensor: Tensor, is_number: bool) -> Any:
    """Return a number, or a tensor with the strides of FX."""
    found = state.values[tensor]
    if isinstance(found, Host) and (is_number or isinstance(found.value, torch.SymBool)):
        return number_node(state, found.value)
    if isinstance(found, Host):
        return _as_data(state, found, state.device)
    if not isinstance(tensor.meta, torch.Tensor) or tensor.meta.layout is not torch.strided:
        return found
    return _arranged(state, [found], [layout_of(tensor.meta)])[0]


def _trace(state: Lowering, op: Op) -> TracedOp:
    """Run the kernel on this op's fake inputs under `make_fx`."""
    tensors = list(dict.fromkeys(inputs_of(op)))
    fakes = [state.value(tensor) for tensor in tensors]
    numbers = _symbols_of(fakes)
    shape: list[Host | None] = []

    def run(*flat: Any) -> list[Any]:
        data, symbols = iter(flat[: len(flat) - len(numbers)]), flat[len(flat) - len(numbers) :]
        values: dict[Tensor, Value] = {}
        for tensor, fake in zip(tensors, fakes, strict=True):
            values[tensor] = _given(fake, numbers, symbols) if isinstance(fake, Host) else next(data)
        results = evaluate(op, values, state.device)
        shape[:] = [result if isinstance(result, Host) else None for result in results]
        # Data-dependent numbers are returned too, so that their nodes stay.
        read = [number for number in _symbols_of(results) if is_unbacked(number)]
        return [*(result for result in results if not isinstance(result, Host)), *read] or [None]

    flat = [fake for fake in fakes if not isinstance(fake, Host)] + numbers
    gm = _traced(state, run, flat)
    returned = iter(cast(Any, gm.graph.output_node().args[0]))
    results: list[fx.Node | Host] = [next(returned) if host is None else host for host in shape]
    return TracedOp(gm, results)


def _traced(state: Lowering, run: Callable[..., Any], flat: list[Any]) -> fx.GraphModule:
    """Return the ATen graph of a function. An op whose decomposition depends on data is kept."""
    tracers = [
        make_fx(run, decomposition_table=table, tracing_mode="real", _allow_non_fake_inputs=True)
        for table in (dict(state.decompositions), {})
    ]
    with faking(state.fake_mode):
        try:
            gm = tracers[0](*flat)
        except DATA_ERRORS:
            gm = tracers[1](*flat)
    # Every element of a tuple gets a getitem, even unread ones and those without a value.
    for node in gm.graph.find_nodes(op="call_function", target=operator.getitem):
        if not node.users:
            gm.graph.erase_node(node)
    return gm


def _inline(state: Lowering, traced: TracedOp, op: Op, first_time: bool) -> list[fx.Node | Host]:
    """Copy the traced nodes into the graph, their inputs replaced by this op's inputs."""
    tensors = list(dict.fromkeys(inputs_of(op)))
    found = [state.values[tensor] for tensor in tensors]
    numbers = _symbols_of([value for value in found if isinstance(value, Host)])
    inputs: list[Any] = [value for value in found if not isinstance(value, Host)]
    inputs += [number_node(state, number) for number in numbers]
    mapped: dict[fx.Node, Any] = {}
    feeds = iter(inputs)
    for node in traced.gm.graph.nodes:
        if node.op == "placeholder":
            mapped[node] = next(feeds)
        elif node.op == "get_attr":
            mapped[node] = _constant(state, traced.gm, node)
        elif node.op != "output":
            mapped[node] = _copy(state, node, mapped, op, first_time)
    results: list[fx.Node | Host] = []
    for result in traced.results:
        if isinstance(result, Host):
            results.append(result)
            continue
        node = mapped[result]
        is_number = isinstance(node, fx.Node) and not isinstance(node.meta["val"], torch.Tensor)
        results.append(flat_values(node.meta["val"])[0] if is_number else node)  # type: ignore[arg-type]
    return results


def _copy(state: Lowering, node: fx.Node, mapped: Mapping[fx.Node, Any], op: Op, first_time: bool) -> fx.Node:
    """Copy one traced node into the graph under construction; repeats take over its value where possible."""
    made = state.graph.node_copy(node, lambda old: mapped[old])
    made.meta = {key: node.meta[key] for key in ("val", "unbacked_bindings") if key in node.meta}
    made.meta["ge_op"] = op.name
    if op.origin is not None:
        made.meta["stack_trace"] = op.origin.trace
    if not first_time:
        state.shared |= reuse_values(node, made, mapped, state.fake_mode)
    _bind_symbols(state, made)
    return made


def _constant(state: Lowering, gm: fx.GraphModule, node: fx.Node) -> fx.Node:
    """Turn a tensor constant or sub-graph of a traced kernel into an attribute of the result."""
    return _attribute(state, getattr(gm, str(node.target)))


def _attribute(state: Lowering, value: Any) -> fx.Node:
    name = state.constants.get(id(value))
    if name is None:
        name = f"constant_{len(state.constants)}"
        state.constants[id(value)] = name
        if isinstance(value, torch.nn.Module):
            state.root.add_module(name, value)
        else:
            setattr(state.root, name, value)
    made = state.graph.get_attr(name)
    if isinstance(value, torch.Tensor):
        made.meta["val"] = state.fake_mode.from_tensor(value, static_shapes=True)
    return made


def _output(state: Lowering, result: Result) -> Any:
    """Return one FX output: a view of the argument that it aliases, or a value in its own memory."""
    if isinstance(result, ConstantResult):
        return result.value
    if isinstance(result, NumberResult):
        return number_node(state, as_host(state.value(result.tensor)).value)
    if isinstance(result, AliasResult) and _is_readable(state, result.layout):
        return _view(state, result)
    found, layout = state.values[result.tensor], result.layout
    if isinstance(found, Host):
        return _as_data(state, found, state.device if layout is None else layout.device)
    # A view of an argument with a data-dependent position is the view that was made here.
    return found if isinstance(result, AliasResult) else _own(state, found, layout)


def _lay_out(state: Lowering, results: Sequence[Result], outputs: list[Any]) -> None:
    """Give the owned outputs their required strides; outputs of one FX storage share one storage."""
    groups: dict[int, list[tuple[int, Layout]]] = {}
    for place, (result, output) in enumerate(zip(results, outputs, strict=True)):
        if isinstance(result, TensorResult) and result.layout is not None and isinstance(output, fx.Node):
            groups.setdefault(result.layout.storage, []).append((place, result.layout))
    for group in groups.values():
        nodes = [outputs[place] for place, _ in group]
        made = _arranged(state, nodes, [layout for _, layout in group])
        for (place, _), node in zip(group, made, strict=True):
            outputs[place] = node


def _arranged(state: Lowering, nodes: list[fx.Node], layouts: Sequence[Layout]) -> list[fx.Node]:
    """Return the values of nodes with layouts of one storage; nodes that already match stay unchanged."""
    if not all(_is_readable(state, layout) for layout in layouts):
        layouts = [replace(layout, is_example=True) for layout in layouts]
    if len(nodes) == 1 and lies(nodes[0].meta["val"], layouts[0], lambda number: number):
        return nodes
    numbers = [] if layouts[0].is_example else _symbols_in([layout.numbers for layout in layouts])

    def run(*given: Any) -> list[Any]:
        known = dict(zip(map(_key, numbers), given[len(nodes) :], strict=True))
        return materialize_layout(
            given[: len(nodes)], layouts, lambda n: known.get(_key(n), n) if is_symbol(n) else n
        )

    return _call(state, run, nodes, numbers)


def _is_readable(state: Lowering, layout: Layout) -> bool:
    """Return whether all numbers of a layout can be computed here; data-dependent ones have other symbols in
    FX.
    """
    numbers = _symbols_in(layout.numbers)
    return all(symbol in state.symbols for number in numbers for symbol in number.node.expr.free_symbols)


def _view(state: Lowering, alias: AliasResult) -> fx.Node:
    """Return the memory of an argument as an alias views it."""
    base, layout = state.placeholders[alias.base], alias.layout
    if not layout.steps:
        return base
    numbers = _symbols_in(layout.numbers)

    def run(x: torch.Tensor, *given: Any) -> list[torch.Tensor]:
        known = dict(zip(map(_key, numbers), given, strict=True))
        return [layout.view(x, lambda number: known[_key(number)])]

    return _call(state, run, [base], numbers)[0]


def _as_data(state: Lowering, value: Host, device: torch.device) -> fx.Node:
    """Return a host value as a tensor."""
    numbers = _symbols_of([value])
    return _call(state, lambda *given: [_given(value, numbers, given).to_tensor(device)], [], numbers)[0]


def _own(state: Lowering, node: fx.Node, layout: Layout | None) -> fx.Node:
    """Return the node, or a copy if it shares memory that it does not share in FX.

    Identity ops and no-op reductions are views here. The copy is made directly: the argument may change.
    """
    expected = id(node) if layout is None else layout.storage
    if state.owners.setdefault(memory_of(node.meta["val"]), expected) == expected:
        return node
    after = state.placeholders[-1] if node.op == "placeholder" else node
    value = node.meta["val"]
    target: Any = torch.ops.aten.clone.default
    args, kwargs = (node,), {}
    if node.op == "get_attr" and not value.numel():
        # Inductor folds the copy of a constant without elements into that constant.
        target, args = torch.ops.aten.full.default, (list(value.shape), 0)
        kwargs = {"dtype": value.dtype, "device": value.device}
    with state.graph.inserting_after(after):
        made = state.graph.call_function(target, args, kwargs)
    with state.fake_mode:
        made.meta["val"] = target(*(value if argument is node else argument for argument in args), **kwargs)
    return made


def _call(
    state: Lowering, fn: Callable[..., list[Any]], nodes: list[fx.Node], numbers: list[Any]
) -> list[fx.Node]:
    """Trace a small function of nodes and numbers and inline it; return the nodes of its results."""
    with faking(state.fake_mode):
        gm = make_fx(
            fn,
            decomposition_table=dict(state.decompositions),
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*(node.meta["val"] for node in nodes), *numbers)
    feeds = iter([*nodes, *(number_node(state, number) for number in numbers)])
    mapped: dict[fx.Node, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            mapped[node] = next(feeds)
        elif node.op == "get_attr":
            mapped[node] = _constant(state, gm, node)
        elif node.op == "output":
            return [mapped[result] for result in cast(Any, node.args[0])]
        else:
            mapped[node] = state.graph.node_copy(node, lambda old: mapped[old])
            mapped[node].meta = {"val": node.meta.get("val")}
    raise AssertionError("a traced function ends in an output")


def number_node(state: Lowering, number: Any) -> Any:
    """Return a number as an FX argument: itself, or the node that computes a symbolic one."""
    if not is_symbol(number):
        return number
    return expression_nodes(state.graph, state.symbols, number)


def _bind_symbols(state: Lowering, node: fx.Node) -> None:
    """Record the source of a symbol: a number, or a size, stride or offset that is exactly this symbol."""
    value = node.meta.get("val")
    if is_symbol(value):
        # A bool that is read is an expression (u0 == 1) of a symbol that no node has.
        if value.node.expr.is_symbol or is_unbacked(value):
            state.symbols.setdefault(value.node.expr, node)
        return
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return
    aten = torch.ops.aten
    places = [(size, aten.sym_size.int, (node, dim)) for dim, size in enumerate(value.shape)]
    places += [(step, aten.sym_stride.int, (node, dim)) for dim, step in enumerate(value.stride())]
    places += [(value.storage_offset(), aten.sym_storage_offset.default, (node,))]
    for number, target, args in places:
        if is_symbol(number) and number.node.expr.is_symbol and number.node.expr not in state.symbols:
            made = state.graph.call_function(target, args)
            made.meta["val"] = number
            state.symbols[number.node.expr] = made


def _symbols_of(values: Sequence[Any]) -> list[Any]:
    """Return the distinct symbolic numbers of the host values, in order."""
    return list(_symbols_in(tuple(value.items for value in values if isinstance(value, Host))))


def _symbols_in(nested: Any) -> list[Any]:
    found: dict[Hashable, Any] = {}

    def walk(part: Any) -> None:
        if is_symbol(part):
            found.setdefault(_key(part), part)
        elif isinstance(part, list | tuple):
            for item in part:
                walk(item)

    walk(nested)
    return list(found.values())


def _key(number: Any) -> Hashable:
    return (type(number).__name__, number.node.expr)


def _given(value: Host, numbers: Sequence[Any], symbols: Sequence[Any]) -> Host:
    """Return a host value with the traced `symbols` in place of `numbers`."""
    given = dict(zip(map(_key, numbers), symbols, strict=True))
    items = tuple(given[_key(item)] if is_symbol(item) else item for item in value.items)
    return Host(items if isinstance(value.value, tuple) else items[0], value.dtype)


def _fake(result: fx.Node | Host) -> Value:
    return result if isinstance(result, Host) else result.meta["val"]


def _source(op: Op) -> str:
    return op.origin.source if op.origin else ""
