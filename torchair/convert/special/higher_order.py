"""Convert higher-order ops.

`cond` becomes If and `while_loop` becomes While, with sub-graphs. Calls of a graph are inlined, short loops
over rows unrolled. The check of a factorization, which AOTAutograd orders by a token, becomes Assert.
Functionalized custom ops are in `auto_functionalized.py`. All others become opaque ops.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair import ge
from torchair.convert.base.operands import BOOL, INT64, cast, like
from torchair.convert.base.registry import converter
from torchair.core.torch_private.fake.fake_tensors import is_unbacked
from torchair.core.torch_private.operators.schemas import HigherOrderOperator
from torchair.ge.builder.build import add_op
from torchair.ge.graph import Graph, Op, RandomFeed, Tensor, current_graph

higher_order = torch.ops.higher_order

# `convert(graph module, role)`: the sub-graph made of a graph module.
Convert = Callable[[fx.GraphModule, str], Graph]


@converter(higher_order.cond)
def cond(pred, true_fn, false_fn, operands, *, convert, meta_outputs):
    """Convert to an If with two sub-graphs."""
    _check_results(meta_outputs)
    inputs = _inputs(operands)
    parts = [convert(true_fn, "then"), convert(false_fn, "else")]
    condition = pred if isinstance(pred, Tensor) else ge.Const(bool(pred))
    return _control("If", {"cond": condition, "input": inputs}, len(meta_outputs), parts)


@converter(higher_order.while_loop)
def while_loop(cond_fn, body_fn, carried_inputs, additional_inputs, *, convert, meta_outputs):
    """Convert to a While with two sub-graphs. Values that do not change are passed through."""
    _check_results(meta_outputs)
    inputs = [*_inputs(carried_inputs), *_inputs(additional_inputs)]
    parts = [convert(cond_fn, "cond"), convert(_with_unchanged_inputs(body_fn, len(meta_outputs)), "body")]
    result = _control("While", {"input": inputs}, len(inputs), parts)
    return result[: len(meta_outputs)]


def _check_results(specs: Sequence[Any]) -> None:
    """Check that results are tensors whose sizes are known before the call."""
    if any(spec.torch_dtype is None or spec.device is None for spec in specs):
        raise NotImplementedError("it returns a value that is not a tensor")
    if any(is_unbacked(size) for spec in specs for size in spec.symsize):
        raise NotImplementedError("the sizes of its results depend on the branch taken")


def _inputs(operands: Any) -> list[Tensor]:
    """Return the tensors of an operand list; a list of only symbols arrives as a packed vector."""
    listed = operands.op.inputs if isinstance(operands, Tensor) else operands
    return [operand if isinstance(operand, Tensor) else ge.Const(operand) for operand in listed]


def _control(op_type: str, inputs: Mapping[str, Any], count: int, parts: Sequence[Graph]) -> list[Tensor]:
    for part in parts:
        if any(isinstance(feed, RandomFeed) for feed in part.feeds.values()):
            raise NotImplementedError("a sub-graph uses random numbers")
        if len(part.feeds) != len(inputs["input"]):
            raise NotImplementedError("an operand is a Python number")
    names = [part.name for part in parts]
    results: list[Tensor] = add_op(op_type, inputs, {}, [("output", count)], subgraphs=names)
    return results


def _with_unchanged_inputs(body: fx.GraphModule, count: int) -> fx.GraphModule:
    """Return a body that returns all of its inputs: the new ones, then those that stay."""
    result = fx.GraphModule(body, copy.deepcopy(body.graph))
    placeholders = [node for node in result.graph.nodes if node.op == "placeholder"]
    output = result.graph.output_node()
    returned = output.args[0]
    listed = returned if isinstance(returned, list | tuple) else (returned,)
    output.args = ((*listed, *placeholders[count:]),)
    return result


@converter(higher_order.with_effects)
def with_effects(token, op, *args, **kwargs):
    """Convert the check of a factorization.

    Ops that must run before it are dependencies of the token; ops that must run after it wait for the new
    token. So no result of a graph is available without the check.
    """
    if op is not torch.ops.aten._linalg_check_errors.default:
        raise NotImplementedError(f"{op} has side effects and no IR op")
    check = _check_errors(*args, dependencies=[token.op])
    return ge.Fill([0], 0.0, dependencies=[check]), None


def _check_errors(info: Tensor, api_name: str, dependencies: Sequence[Op]) -> Op:
    """Assert that no matrix failed.

    It shows `info`, then the name of the call as code points: the IR has no text constants.
    """
    passed = ge.ReduceAll(ge.Equal(info, like(0, info)), list(range(info.rank)))
    name = ge.Const([ord(letter) for letter in api_name], dtype=INT64)
    ge.Assert(cast(passed, BOOL), [info, name], summarize=len(api_name), dependencies=dependencies)
    return current_graph().ops[-1]


def _map(f: Any, xs: Sequence[torch.Tensor], pos_args: Sequence[Any]) -> list[Any]:
    """Apply `f` to every row."""
    steps = [f(*(x[step] for x in xs), *pos_args) for step in _steps(xs)]
    return [torch.stack(column) for column in zip(*steps, strict=True)]


def _scan(
    combine_fn: Any, init: Sequence[Any], xs: Sequence[torch.Tensor], more: Sequence[Any] = ()
) -> list[Any]:
    """Process row after row with a carried value; stack the other results."""
    carry, rows = list(init), []
    for step in _steps(xs):
        result = combine_fn(*carry, *(x[step] for x in xs), *more)
        carry, row = list(result[: len(init)]), result[len(init) :]
        rows.append(row)
    return [*carry, *(torch.stack(column) for column in zip(*rows, strict=True))]


def _associative_scan(combine_fn: Any, xs: Sequence[torch.Tensor], more: Sequence[Any] = ()) -> list[Any]:
    """Combine all rows up to each one."""
    rows: list[Sequence[torch.Tensor]] = []
    for step in _steps(xs):
        row = [x[step] for x in xs]
        rows.append(combine_fn(*rows[-1], *row, *more) if rows else row)
    return [torch.stack(column) for column in zip(*rows, strict=True)]


# Loops over a tensor of up to this many rows are unrolled.
UNROLLED = 16


def _steps(xs: Sequence[torch.Tensor]) -> range:
    length = xs[0].shape[0]
    if not isinstance(length, int) or length > UNROLLED:
        raise NotImplementedError(f"it is unrolled for up to {UNROLLED} steps, but has {length}")
    return range(length)


def _out_dtype(op: Any, output_dtype: torch.dtype, *args: Any) -> torch.Tensor:
    """Apply an op to wider operands."""
    if op is torch.ops.aten.mm.default and [arg.dtype for arg in args] == [torch.int8] * 2:
        return torch.ops.aten._int_mm.default(*args).to(output_dtype)
    wide = [arg.to(output_dtype) if isinstance(arg, torch.Tensor) else arg for arg in args]
    return op(*wide).to(output_dtype)


def _with_autocast(
    device_type: str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None, f: Any, *args: Any
) -> Any:
    with torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled):
        return f(*args)


# Higher-order ops, by name, that only wrap their graph.
_INLINED: dict[str, Callable[..., Any]] = {
    "invoke_subgraph": lambda f, identifier, *operands: f(*operands),
    "wrap": lambda f, *args, **kwargs: f(*args, **kwargs),
    "wrap_with_set_grad_enabled": lambda enabled, f, *args: f(*args),
    "wrap_with_autocast": _with_autocast,
    "wrap_activation_checkpoint": lambda f, *args, **options: f(*args),
    "tag_activation_checkpoint": lambda f, *args, **options: f(*args),
    "strict_mode": lambda f, operands: f(*operands),
    "hints_wrapper": lambda f, args, kwargs, hints: f(*args, **kwargs),
    "out_dtype": _out_dtype,
    "map_impl": _map,
    "scan": _scan,
    "associative_scan": _associative_scan,
}


def inlined(target: Any) -> Callable[..., Any] | None:
    """Return a function that inlines a higher-order op as calls of its graph, or None."""
    return _INLINED.get(target.name()) if isinstance(target, HigherOrderOperator) else None


def structured(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a higher-order op that gets tuples where FX has tuples: an IR op's text has lists."""
    if not isinstance(target, HigherOrderOperator):
        return target
    return Structured(target, _skeleton(tuple(args)), _skeleton(dict(kwargs)))


@dataclass(frozen=True, eq=False)
class Structured:
    """Call a higher-order op with arguments in the structure of these.

    They contain only lists, tuples and dictionaries.
    """

    target: HigherOrderOperator
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def __name__(self) -> str:
        return self.target.name()

    def __call__(self, *given: Any, **named: Any) -> Any:
        keys = {key: _shaped(self.kwargs[key], value) for key, value in named.items()}
        values = (_shaped(like, value) for like, value in zip(self.args, given, strict=True))
        return self.target(*values, **keys)


def _skeleton(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _skeleton(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = map(_skeleton, value)
        return tuple(items) if isinstance(value, tuple) else list(items)
    return None


def _shaped(like: Any, value: Any) -> Any:
    if isinstance(like, dict):
        return {key: _shaped(like[key], item) for key, item in value.items()}
    if not isinstance(like, list | tuple):
        return value
    items = [_shaped(part, item) for part, item in zip(like, value, strict=True)]
    return tuple(items) if isinstance(like, tuple) else items
