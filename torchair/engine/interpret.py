"""The reference run: one op after the other on real tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch

from torchair.engine.evaluate import Value, evaluate, flat_values
from torchair.engine.kernels.control import run_control, takes_number
from torchair.engine.layout import is_static, memory_of, restride
from torchair.engine.registry import as_host
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Feed, Graph, Op, Result, Tensor
from torchair.ge.host import Host, host_dtype
from torchair.ge.random_state import FROM_GENERATOR

Observer = Callable[[Op, list[Value]], None]


def interpret(
    graph: Graph,
    args: Sequence[Any],
    device: torch.device,
    observe: Observer | None = None,
    parts: Mapping[str, Graph] | None = None,
) -> list[Any]:
    """Run a graph on the flat arguments of the FX graph it was made from; returns the FX outputs.

    `parts` are the sub-graphs that its ops may name: those of the main graph.
    """
    parts = graph.subgraphs if parts is None else parts

    def run_part(part: Graph, given: list[Any]) -> list[Any]:
        return interpret(part, given, device, observe, parts)

    values: dict[Tensor, Value] = {}
    # Results that share memory with an argument where FX promised that they do not: copied before it changes.
    kept: dict[Tensor, Value] = {}
    returned = {result.tensor for result in graph.results if result.kind == "tensor"}
    owned = {memory_of(arg) for arg in args if isinstance(arg, torch.Tensor)}

    def shares(value: Value) -> TypeGuard[torch.Tensor]:
        return isinstance(value, torch.Tensor) and memory_of(value) in owned

    with torch.no_grad():
        for op in graph.ops:
            if op.type == OUTPUT_TYPE:
                continue
            if op.type in INPUT_TYPES:
                made = [feed_value(graph.feeds[op.name], args)]
            elif op.subgraphs:
                called = [parts[name] for name in op.subgraphs]
                given = [
                    _argument(values[tensor], takes_number(op, number, called[0]), device)
                    for number, tensor in enumerate(op.inputs)
                ]
                made = flat_values(run_control(op, given, called, run_part))
            else:
                made = evaluate(op, values, device)
            values.update(zip(op.outputs, made, strict=True))
            kept.update(
                (tensor, value.clone())
                for tensor, value in zip(op.outputs, made, strict=True)
                if tensor in returned and shares(value)
            )
            if observe is not None:
                observe(op, made)
        made = [read(result, values | kept, args, device) for result in graph.results]
        return _apart(graph.results, made)


def _argument(value: Value, is_number: bool, device: torch.device) -> Any:
    """A value as an argument of a sub-graph."""
    if not isinstance(value, Host):
        return value
    return value.value if is_number else value.to_tensor(device)


def _apart(results: Sequence[Result], made: Sequence[Any]) -> list[Any]:
    """Results that share memory with each other, though in FX they do not, get memory of their own."""
    owners: dict[int, int] = {}
    apart = list(made)
    for place, (result, value) in enumerate(zip(results, made, strict=True)):
        if result.kind == "tensor" and result.meta is not None:
            promised = memory_of(result.meta)
            if owners.setdefault(memory_of(value), promised) != promised:
                apart[place] = value.clone()
    return apart


def read(result: Result, values: Mapping[Tensor, Value], args: Sequence[Any], device: torch.device) -> Any:
    """One FX output from the values of a run."""
    if result.kind == "constant":
        return result.value
    if result.kind == "alias" and is_static(result.meta):
        meta = result.meta
        return args[result.arg].as_strided(meta.shape, meta.stride(), meta.storage_offset())
    assert result.tensor is not None, "only constants have no tensor"
    value = values[result.tensor]
    if result.kind == "number":
        return as_host(value).value
    if isinstance(value, Host):
        return value.to_tensor(device if result.meta is None else result.meta.device)
    # A graph read from a file may not say how its results were laid out.
    return value if result.meta is None else restride(value, result.meta)


def feed_value(feed: Feed, args: Sequence[Any]) -> Value:
    """The value of a graph input: an argument tensor, a number as a host value, or several packed."""
    if feed.kind == "random":
        return Host((FROM_GENERATOR,) * feed.args[0])
    if feed.kind == "pack":
        return Host(tuple(args[index] for index in feed.args))
    value = args[feed.args[0]]
    if value is None:
        # AOTAutograd passes nothing for a token, which only puts effects in order.
        return torch.empty(0)
    return value if isinstance(value, torch.Tensor) else Host(value, host_dtype(value))
