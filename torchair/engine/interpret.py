"""The reference run: one op after the other on real tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch

from torchair.engine.evaluate import Value, evaluate
from torchair.engine.layout import is_static, memory_of, restride
from torchair.engine.registry import as_host
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Feed, Graph, Op, Result, Tensor
from torchair.ge.host import Host, host_dtype
from torchair.ge.random_state import FROM_GENERATOR

Observer = Callable[[Op, list[Value]], None]


def interpret(
    graph: Graph, args: Sequence[Any], device: torch.device, observe: Observer | None = None
) -> list[Any]:
    """Run a graph on the flat arguments of the FX graph it was made from; returns the FX outputs."""
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
            made = (
                [feed_value(graph.feeds[op.name], args)]
                if op.type in INPUT_TYPES
                else evaluate(op, values, device)
            )
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


def _apart(results: Sequence[Result], made: Sequence[Any]) -> list[Any]:
    """Results that share memory with each other, though in FX they do not, get memory of their own."""
    owners: dict[int, int] = {}
    apart = list(made)
    for place, (result, value) in enumerate(zip(results, made, strict=True)):
        if result.kind == "tensor":
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
