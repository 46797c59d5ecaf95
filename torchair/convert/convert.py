"""FX graph -> GE graph: convert the nodes in order.

For a call the look-up order is: the user's converter, the built-in one, the op's decomposition, an opaque
`TorchOp`. So no op makes the conversion fail; the report records the treatment of each op.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from torchair import ge
from torchair.configs.binding import default_of
from torchair.convert.base import scopes, views
from torchair.convert.base.conversion_state import ConversionState
from torchair.convert.base.inference_rule import attach_rules
from torchair.convert.base.operands import in_form, pack
from torchair.convert.base.registry import Converter, candidates, decomposition_for, has_converter, why_opaque
from torchair.convert.base.report import ConversionReport, Reason
from torchair.convert.base.results import check_results, target_name, used
from torchair.convert.special import stride_queries
from torchair.convert.special.higher_order import inlined, structured
from torchair.convert.special.without_kernel import run_by_torch, unvalued
from torchair.core.errors import AirError, BadConverter, UnknownOp, UnsupportedOp, first_line, is_of_user
from torchair.core.log import logger
from torchair.core.source_location import source_of
from torchair.core.torch_private.fake.fake_tensors import (
    disable_modes,
    faking,
    make_fx,
    tree_flatten,
    tree_unflatten,
    with_shape_env,
)
from torchair.core.torch_private.operators.schemas import OpOverload, decomposition_of
from torchair.fxgraph.effects import flat, functional_twin, mutates
from torchair.fxgraph.external_constants import HELD
from torchair.fxgraph.fake_values import device_of, moves_between_devices, tensors_of
from torchair.fxgraph.layout import Layout, layouts_of
from torchair.ge.attr import Bool
from torchair.ge.builder.torch_op import Symbol, torch_op
from torchair.ge.graph import (
    AliasResult,
    ArgumentFeed,
    ConstantResult,
    Graph,
    NumberResult,
    Op,
    Origin,
    Result,
    Tensor,
    TensorResult,
)
from torchair.ge.host import Host, host_dtype, is_symbol
from torchair.ge.types import spec_of

aten = torch.ops.aten

# These run on every rank or have side effects: never replaced by an empty constant.
_NEVER_EMPTY = ("npu_define", "_c10d_functional")


def convert(
    gm: fx.GraphModule,
    infer: Callable[[Op], None],
    fake_mode: Any,
    *,
    name: str = "",
    fold_views: bool = default_of("experimental_config.enable_view_optimize"),
    layouts: Sequence[Layout | None] | None = None,
    opaque: Mapping[str, str] | None = None,
    soc: str = default_of("engine_config.soc"),
) -> tuple[Graph, ConversionReport]:
    """Return the GE graph of a functional ATen graph, and the conversion report.

    `infer` fills the metas of a new op's outputs; every FX node has `meta["val"]`. `layouts` are the required
    layouts of the outputs, if not those of the graph itself; nodes named in `opaque` become opaque ops.
    """
    state = ConversionState(
        Graph(name, infer), fake_mode, fold_views, opaque=opaque or {}, home=device_of(gm)
    )
    state.graph.subgraphs = state.parts
    state.graph.soc = soc
    graph = _convert_nodes(state, gm, layouts_of(gm) if layouts is None else layouts)
    state.report.is_of_ir = True
    return graph, state.report


def _convert_nodes(state: ConversionState, gm: fx.GraphModule, layouts: Sequence[Layout | None]) -> Graph:
    env: dict[fx.Node, Any] = {}
    # Constants are real tensors, whatever mode the caller traces under.
    with disable_modes(), state.graph:
        for node in gm.graph.nodes:
            state.top = node.name
            if node.op == "placeholder":
                env[node] = _placeholder(state, node)
            elif node.op == "output":
                _output(state, node, layouts, env)
            else:
                first = len(state.graph.ops)
                env[node] = _node(state, gm, node, env)
                state.schedule.add_pending_edges(state.graph.ops[first:])
    return state.graph


def _part(state: ConversionState, gm: fx.GraphModule, role: str) -> Graph:
    """Convert a graph module of a higher-order op to a sub-graph."""
    origin = state.graph.origin
    name = f"{state.graph.name}_{origin.name if origin else 'call'}_{role}"
    while name in state.parts:
        name += "_"
    graph = state.parts[name] = Graph(name, state.graph.infer)
    graph.soc, graph.scopes = state.graph.soc, list(state.graph.scopes)
    part = replace(state, graph=graph, placeholders=[], views={}, is_part=True, schedule=scopes.Schedule())
    return _convert_nodes(part, gm, layouts_of(gm))


def _placeholder(state: ConversionState, node: fx.Node) -> Any:
    """Add a Data op; a symbol is a rank-0 host input."""
    index = len(state.placeholders)
    state.placeholders.append(node)
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) and not is_symbol(value):
        return value
    state.graph.origin = Origin(node.name, "placeholder", source_of(node), node)
    tensor: Tensor = ge.Data(index=len(state.graph.feeds), node_name=_unique(state, node.name))
    state.graph.feeds[tensor.op.name] = ArgumentFeed(index)
    if isinstance(value, torch.Tensor):
        tensor.meta = value
    elif isinstance(constant := _number(value), int | float | bool):
        tensor.meta = Host(constant, host_dtype(value))
        return constant
    else:
        tensor.meta = Host(value, host_dtype(value))
    return tensor


def _unique(state: ConversionState, name: str) -> str:
    while name in state.graph.by_name:
        name += "_"
    return name


def _constant(state: ConversionState, value: torch.Tensor, node: fx.Node) -> Tensor:
    """Add a tensor constant of the graph. An external constant is never merged with an equal one."""
    is_held = HELD in node.meta
    made = ge.Const(value, readable=not is_held and value.numel() <= 64)
    made.op.attrs |= {HELD: Bool(True)} if is_held else {}
    if value.device == state.home or not any(_is_seen_on(value.device, user) for user in node.users):
        return made
    (copied,) = torch_op(aten._to_copy.default, [made], {"device": value.device}, 1, "aten._to_copy.default")
    copied.meta = node.meta["val"]
    return copied


def _is_seen_on(device: torch.device, user: fx.Node) -> bool:
    """Return whether the result of this node stays on the device of its argument."""
    return user.op == "output" or any(value.device == device for value in tensors_of(user))


def _node(state: ConversionState, gm: fx.GraphModule, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    if node.op == "get_attr":
        value = operator.attrgetter(str(node.target))(gm)
        return _constant(state, value, node) if isinstance(value, torch.Tensor) else value
    assert node.op == "call_function", f"an ATen graph has no {node.op} nodes"
    meta = node.meta.get("val")
    if is_symbol(meta) and not is_symbol(number := _number(meta)):
        return number
    if node.target is operator.getitem:
        return _argument(state, node.args[0], env, read_views=False)[node.args[1]]
    state.graph.origin = Origin(node.name, target_name(node.target), source_of(node), node, state.top)
    if node.target in stride_queries.TARGETS and is_symbol(meta):
        number = stride_queries.from_sizes(meta, state.placeholders, env)
        if number is not None:
            state.count(target_name(node.target))
            return number
    if node.target in scopes.MARKS:
        return scopes.mark(state.graph, state.schedule, node, lambda x: _tensors(state, x, env))
    if state.fold_views and node.target in views.TARGETS and not state.graph.scopes:
        x = _argument(state, node.args[0], env, read_views=False)
        if isinstance(x, Tensor | views.View) and isinstance(meta, torch.Tensor) and not _is_empty(meta):
            args = [None, *(_raw(argument, env) for argument in node.args[1:])]
            return views.fold(node.target, x, args, meta)
    args = [_argument(state, argument, env) for argument in node.args]
    kwargs = {key: _argument(state, argument, env) for key, argument in node.kwargs.items()}
    variant = functional_twin(node)
    if variant is None:
        return _call(state, node, args, kwargs)
    # torch's own composites write into new values: later readers of such a value read the written one.
    node.target = variant
    written = node.all_input_nodes[0]
    env[written] = _call(state, node, args, kwargs)
    return env[written]


def _call(state: ConversionState, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Convert one call by the look-up order."""
    meta = node.meta.get("val")
    name = target_name(node.target)
    if _is_empty(meta) and not name.startswith(_NEVER_EMPTY) and not mutates(node.target):
        return _empty(meta)
    reasons: list[str] = []
    if state.top in state.opaque:
        return _fall_back(state, node, args, kwargs, state.opaque[state.top])
    if moves_between_devices(node, state.home):
        # The IR has no devices: torch runs the call, and nothing is lost.
        state.count(name)
        return _carry(node, args, kwargs)
    for row in candidates(node.target):
        done, result = _try(state, row, node, args, kwargs, reasons)
        if done:
            state.count(name)
            return result
    decomposed = _decompose(state, node, args, kwargs, reasons)
    if decomposed is not None:
        state.report.decomposed.append(
            Reason(name, "; ".join(reasons) or "it has no converter", source_of(node))
        )
        logger.debug("%s = %s was decomposed: %s", node.name, name, state.report.decomposed[-1].why)
        return decomposed[0]
    return _fall_back(state, node, args, kwargs, "; ".join(reasons) or why_opaque(node.target))


def _try(
    state: ConversionState,
    row: Converter,
    node: fx.Node,
    args: list[Any],
    kwargs: dict[str, Any],
    reasons: list[str],
) -> tuple[bool, Any]:
    """Run one converter; if it declines or fails, undo what it built and record the reason."""
    meta, mark = node.meta.get("val"), state.mark()
    who = "the user's converter" if row.from_user else "the converter"
    try:
        plain = [_plain(argument) for argument in args]
        named = {key: _plain(argument) for key, argument in kwargs.items()}
        why_not = row.only(*plain, **named) if row.only else None
        if why_not is None:
            extra: dict[str, Any] = {"meta_outputs": spec_of(meta)} if row.wants_meta else {}
            if row.wants_used:
                extra["used"] = used(node, meta)
            if row.wants_convert:
                extra["convert"] = functools.partial(_part, state)
            result = row.fn(*plain, **named, **extra)
            unknown = unvalued(result, meta)
            check_results(node, result, meta)
            result = in_form(result, meta)
            run_by_torch(node, state.graph.ops[mark.ops :], args, kwargs, unknown)
            attach_rules(node.target, args, kwargs, result, state.graph.ops[mark.ops :])
            if logger.isEnabledFor(logging.DEBUG):
                made = ", ".join(op.name for op in state.graph.ops[mark.ops :]) or "no op"
                logger.debug("%s = %s becomes %s%s", node.name, target_name(node.target), made, _at(node))
            return True, result
        reasons.append(f"{who} declined: {why_not}")
    except (UnknownOp, UnsupportedOp, NotImplementedError) as error:
        if is_of_user(error):
            raise
        reasons.append(f"{who} declined: {first_line(error)}")
    except Exception as error:
        if is_of_user(error):
            raise
        if row.from_user and isinstance(error, AirError):
            error.of_user()
            raise
        if row.from_user:
            raise BadConverter(
                f"the converter of {node.target} raised {type(error).__name__}: {error}", at=source_of(node)
            ).of_user() from error
        reasons.append(f"{who} failed: {first_line(error)}")
        logger.warning("converter of %s at %s: %r", node.target, source_of(node), error)
    state.rollback(mark)
    return False, None


def _decompose(
    state: ConversionState, node: fx.Node, args: list[Any], kwargs: dict[str, Any], reasons: list[str]
) -> tuple[Any] | None:
    """Decompose the op as torch does, and convert the parts; return None if it cannot be decomposed."""
    decomposition = inlined(node.target) or decomposition_for(node.target) or decomposition_of(node.target)
    if decomposition is None:
        return None
    # A node without a value is a graph module, which is among the converted arguments.
    given = map_arg((node.args, node.kwargs), lambda inner: inner.meta.get("val", inner))
    real, structure = tree_flatten(_mutable(given))
    values, _ = tree_flatten((args, kwargs), is_leaf=lambda part: isinstance(part, Symbol))
    varying = [i for i, part in enumerate(real) if isinstance(part, torch.Tensor) or is_symbol(part)]
    if len(values) != len(real):
        reasons.append("its arguments do not match a decomposition")
        return None
    real = [value if isinstance(part, fx.Node) else part for part, value in zip(real, values, strict=True)]

    def run(*inputs: Any) -> Any:
        filled = list(real)
        for index, value in zip(varying, inputs, strict=True):
            filled[index] = value
        inner_args, inner_kwargs = tree_unflatten(filled, structure)
        result = decomposition(*inner_args, **inner_kwargs)
        if result is NotImplemented:
            raise NotImplementedError("its decomposition does not cover these arguments")
        # A named tuple would be traced as a call.
        return tuple(result) if isinstance(result, tuple) else result

    mark = state.mark()
    try:
        gm = _trace(state, run, [real[i] for i in varying])
        ends = [name for inner in gm.graph.nodes if (name := _dead_end(inner, node))]
        if ends:
            reasons.append(f"its decomposition contains {ends[0]}, which cannot be converted")
            return None
        result = _inline(state, gm, [values[i] for i in varying], node)
        check_results(node, result, node.meta.get("val"))
        return (result,)
    except Exception as error:
        if is_of_user(error):
            raise
        state.rollback(mark)
        reasons.append(f"its decomposition failed: {first_line(error)}")
        return None


def _trace(state: ConversionState, run: Callable[..., Any], inputs: Sequence[Any]) -> fx.GraphModule:
    """Return the ATen graph of a decomposition; writes into its own values are made functional."""
    with with_shape_env(state.fake_mode), faking(state.fake_mode), torch.no_grad():
        gm = make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True)(*inputs)
        if any(_writes_inside(inner) for inner in gm.graph.nodes):
            functional = torch.func.functionalize(run, remove="mutations")
            gm = make_fx(functional, tracing_mode="real", _allow_non_fake_inputs=True)(*inputs)
    return gm


def _dead_end(inner: fx.Node, outer: fx.Node) -> str:
    """Return the name of a part that cannot be converted: the op itself, a prim without converter, a
    write.
    """
    name = target_name(inner.target)
    unknown_prim = name.startswith("prims.") and not has_converter(inner.target)
    lost_write = _writes_inside(inner) and functional_twin(inner) is None
    itself = inner.target is outer.target and isinstance(inner.target, OpOverload)
    return name if itself or unknown_prim or lost_write else ""


def _writes_inside(node: fx.Node) -> bool:
    """Return whether a node writes into a value of the graph itself; `copy_` into an argument updates the
    argument.
    """
    if not mutates(node.target):
        return False
    target = node.args[0] if node.args else None
    is_input = isinstance(target, fx.Node) and target.op == "placeholder"
    return not (is_input and node.target is aten.copy_.default)


def _mutable(arguments: Any) -> Any:
    """Convert FX's immutable lists to plain lists: some decompositions write into their arguments."""
    if isinstance(arguments, list):
        return [_mutable(item) for item in arguments]
    if isinstance(arguments, tuple) and not isinstance(arguments, torch.Size):
        return tuple(_mutable(item) for item in arguments)
    return dict(arguments) if isinstance(arguments, dict) else arguments


def _inline(state: ConversionState, gm: fx.GraphModule, inputs: Sequence[Any], outer: fx.Node) -> Any:
    """Convert the nodes of a traced decomposition in place of the call."""
    env: dict[fx.Node, Any] = {}
    feeds = iter(inputs)
    for node in gm.graph.nodes:
        node.meta.setdefault("stack_trace", outer.meta.get("stack_trace"))
        if node.op == "placeholder":
            value = next(feeds)
            env[node] = value.tensor if isinstance(value, Symbol) else value
        elif node.op == "output":
            return map_arg(node.args[0], lambda inner: _read(state, env[inner]))
        else:
            env[node] = _node(state, gm, node, env)
    raise AssertionError("a traced decomposition ends in an output")


def _fall_back(
    state: ConversionState, node: fx.Node, args: list[Any], kwargs: dict[str, Any], why: str
) -> Any:
    """Keep the ATen call as an opaque op of the IR, and log it."""
    name = target_name(node.target)
    made = _carry(node, args, kwargs)
    state.report.fallbacks.append(Reason(name, why, source_of(node)))
    logger.info("%s runs as an opaque torch op: %s%s", name, why, _at(node))
    return made


def _carry(node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Create the opaque op for an ATen call."""
    meta = node.meta.get("val")
    expected = list(flat(meta))
    target = structured(node.target, node.args, node.kwargs)
    count = sum(value is not None for value in expected)
    results = iter(torch_op(target, args, kwargs, count, target_name(node.target)))
    filled = [None if value is None else next(results) for value in expected]
    for tensor, value in zip(filled, expected, strict=True):
        if tensor is not None and isinstance(value, torch.Tensor):
            tensor.meta = value
        elif tensor is not None:
            tensor.meta = Host(value, host_dtype(value))
    return _unflatten(meta, iter(filled))


def _output(
    state: ConversionState, node: fx.Node, layouts: Sequence[Layout | None], env: Mapping[fx.Node, Any]
) -> None:
    """Add the NetOutput of the distinct tensors, and record the kind of every FX output."""
    returned = node.args[0]
    listed: Sequence[Any] = returned if isinstance(returned, list | tuple) else [returned]
    results = [_result(state, item, layout, env) for item, layout in zip(listed, layouts, strict=True)]
    if state.is_part and any(isinstance(result, ConstantResult) for result in results):
        raise NotImplementedError("a sub-graph returns a value that is not a tensor")
    state.graph.results = results
    owned = dict.fromkeys(result.tensor for result in results if isinstance(result, TensorResult))
    # The caller of a sub-graph relies on all of its results, in order.
    returned = state.graph.returned if state.is_part else list(owned)
    keep = [op for op in state.graph.ops if op.type == "Assign"]
    state.graph.origin = None
    ge.NetOutput(returned, node_name=_unique(state, "NetOutput"))
    output = state.graph.output
    assert output is not None, "NetOutput was just added"
    output.after = keep


def _result(state: ConversionState, item: Any, layout: Layout | None, env: Mapping[fx.Node, Any]) -> Result:
    if not isinstance(item, fx.Node):
        return ConstantResult(item)
    value = _read(state, env[item])
    meta = item.meta.get("val")
    if not isinstance(value, Tensor):
        return ConstantResult(value)
    if is_symbol(meta):
        return NumberResult(value)
    if not isinstance(meta, torch.Tensor):
        return ConstantResult(meta)
    if layout is not None and layout.base is not None:
        return AliasResult(value, layout)
    return TensorResult(value, layout)


def _argument(
    state: ConversionState, argument: Any, env: Mapping[fx.Node, Any], read_views: bool = True
) -> Any:
    """Return an FX argument as converters see it. Symbols stay marked until a converter receives them."""
    if isinstance(argument, fx.Node):
        value = env[argument]
        if isinstance(value, Tensor) and is_symbol(argument.meta.get("val")):
            return Symbol(value)
        return _read(state, value) if read_views else value
    if isinstance(argument, list | tuple):
        return [_argument(state, item, env) for item in argument]
    if isinstance(argument, dict):
        return {key: _argument(state, item, env) for key, item in argument.items()}
    return argument


def _tensors(state: ConversionState, argument: Any, env: Mapping[fx.Node, Any]) -> list[Tensor]:
    return [item for item in flat(_argument(state, argument, env)) if isinstance(item, Tensor)]


def _raw(argument: Any, env: Mapping[fx.Node, Any]) -> Any:
    """Return an FX argument with rank-0 tensors for symbols; lists stay lists."""
    if isinstance(argument, list | tuple):
        return [_raw(item, env) for item in argument]
    return env[argument] if isinstance(argument, fx.Node) else argument


def _plain(argument: Any) -> Any:
    """Return a converter's argument: symbols as rank-0 tensors, lists with symbols packed into one INT64
    vector.
    """
    if isinstance(argument, Symbol):
        return argument.tensor
    if isinstance(argument, dict):
        return {key: _plain(item) for key, item in argument.items()}
    if not isinstance(argument, list):
        return argument
    numbers = all(isinstance(item, int | Symbol) and not isinstance(item, bool) for item in argument)
    if numbers and any(isinstance(item, Symbol) for item in argument):
        return pack([item.tensor if isinstance(item, Symbol) else item for item in argument])
    return [_plain(item) for item in argument]


def _read(state: ConversionState, value: Any) -> Any:
    """Turn views into tensors when they are read."""
    if isinstance(value, views.View):
        return views.materialise(value, state.views)
    if isinstance(value, list | tuple):
        return [_read(state, item) for item in value]
    return value


def _number(value: Any) -> Any:
    """Return a symbol with a constant value as that constant."""
    if not is_symbol(value):
        return value
    expr = value.node.expr
    if not expr.is_number:
        return value
    return int(expr) if isinstance(value, torch.SymInt) else (bool(expr) if expr.is_Boolean else float(expr))


def _is_empty(meta: Any) -> bool:
    """Return whether every result is a tensor with a dimension of size 0, and no symbols."""
    listed = list(flat(meta))
    return bool(listed) and all(
        isinstance(value, torch.Tensor)
        and 0 in [s for s in value.shape if not is_symbol(s)]
        and _static(value)
        for value in listed
    )


def _static(value: torch.Tensor) -> bool:
    return not any(is_symbol(size) for size in value.shape)


def _empty(meta: Any) -> Any:
    if isinstance(meta, list | tuple):
        return [_empty(item) for item in meta]
    made = ge.Const(torch.empty(tuple(meta.shape), dtype=meta.dtype), readable=False)
    made.meta = meta
    return made


def _unflatten(like: Any, values: Any) -> Any:
    if isinstance(like, list | tuple):
        return [_unflatten(item, values) for item in like]
    return next(values)


def _at(node: fx.Node) -> str:
    source = source_of(node)
    return f" (at {source})" if source else ""
