"""Store runtime facts of a graph as private graph attributes, so that a graph from a file can run.

`_torchair_feeds` and `_torchair_results` hold `Graph.feeds` and `Graph.results` as JSON. A graph without them
gets defaults: input i is argument i, and the results are those of NetOutput. `_torchair_exact` holds, by op
name, the numbers of constants that 32 bits on the wire do not hold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchair.core.errors import BadGraph, NotPossible
from torchair.core.torch_private.operators.schemas import find_overload
from torchair.fxgraph.effects import makes_views
from torchair.fxgraph.layout import Layout, ViewStep
from torchair.fxgraph.symbols import hint, is_symbol
from torchair.ge.attr import Attr, Str
from torchair.ge.attr import Tensor as TensorAttr
from torchair.ge.graph import (
    AliasResult,
    ArgumentFeed,
    ConstantResult,
    Feed,
    Graph,
    NumberResult,
    PackFeed,
    RandomFeed,
    Result,
    Tensor,
    TensorResult,
)
from torchair.ge.schema.descriptor import input_desc

FEEDS, RESULTS, EXACT = "_torchair_feeds", "_torchair_results", "_torchair_exact"


def runtime_attrs(graph: Graph) -> dict[str, Attr]:
    """Return the facts as attributes; a graph without facts (one just built by hand) has none."""
    if not graph.feeds and not graph.results:
        return {}
    feeds = {name: _write_feed(feed) for name, feed in graph.feeds.items()}
    results = [_write_result(graph, number, result) for number, result in enumerate(graph.results)]
    return {FEEDS: Str(json.dumps(feeds)), RESULTS: Str(json.dumps(results))}


def exact_attrs(graph: Graph) -> dict[str, Attr]:
    """Return the numbers of its constants that the wire would round."""
    stored = {op.name: op.attrs.get("value") for op in graph.ops if op.type == "Const"}
    exact = {name: value.exact for name, value in stored.items() if isinstance(value, TensorAttr)}
    numbers = {name: number for name, number in exact.items() if number is not None}
    return {EXACT: Str(json.dumps(numbers))} if numbers else {}


def take_runtime_attrs(graph: Graph) -> None:
    """Fill `feeds` and `results` from the attributes, which are removed, or with defaults."""
    _take_exact(graph)
    feeds, results = graph.attrs.pop(FEEDS, None), graph.attrs.pop(RESULTS, None)
    if feeds is None or results is None:
        graph.feeds = {op.name: ArgumentFeed(number) for number, op in enumerate(graph.inputs)}
        graph.results = _obvious_results(graph)
        return
    graph.feeds = {name: _read_feed(graph, *row) for name, row in json.loads(feeds.value).items()}
    graph.results = [_read_result(graph, row) for row in json.loads(results.value)]


def _take_exact(graph: Graph) -> None:
    written = graph.attrs.pop(EXACT, None)
    for name, number in (json.loads(written.value) if written is not None else {}).items():
        stored = graph.by_name[name].attrs.get("value") if name in graph.by_name else None
        if not isinstance(stored, TensorAttr) or stored.value.dtype != torch.float32:
            raise BadGraph(f"{graph.name} has an exact number for {name!r}, which is not a FLOAT constant")
        stored.exact = number


def _obvious_results(graph: Graph) -> list[Result]:
    output = graph.output
    outputs: list[Result] = []
    for slot in output.slots if output is not None else ():
        if slot.tensor is None:
            continue
        desc = input_desc(output, slot) if output is not None else slot.desc
        known = desc.shape is not None and -2 not in desc.shape
        sizes = [2 if size < 0 else size for size in desc.shape or ()]
        outputs.append(TensorResult(slot.tensor, _in_order(sizes, len(outputs)) if known else None))
    return outputs


def _in_order(sizes: Sequence[int], storage: int) -> Layout:
    """Return the layout with dims in their own order, whatever their sizes turn out to be."""
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    return Layout(
        tuple(sizes), tuple(strides), 0, torch.float32, torch.device("cpu"), storage, is_example=True
    )


def _write_feed(feed: Feed) -> tuple[str, Sequence[int]]:
    match feed:
        case ArgumentFeed(index):
            return "value", [index]
        case PackFeed(indices):
            return "pack", indices
        case RandomFeed(count):
            return "random", [count]


def _read_feed(graph: Graph, kind: str, numbers: list[int]) -> Feed:
    match kind, numbers:
        case "value", [int(index)]:
            return ArgumentFeed(index)
        case "pack", [*indices] if all(isinstance(index, int) for index in indices):
            return PackFeed(tuple(indices))
        case "random", [int(count)] if 0 <= count <= len(graph.ops):
            return RandomFeed(count)
        case _:
            raise BadGraph(
                f"input feed {kind!r} of {graph.name} has invalid argument numbers {numbers}",
                near="'value' and 'random' (smaller than the number of random ops) have one number, "
                "'pack' has any",
            )


def _write_result(graph: Graph, number: int, result: Result) -> dict[str, Any]:
    match as_written(result):
        case TensorResult(tensor, Layout() as layout):
            return {"kind": "tensor", "tensor": tensor.tensor, "layout": _layout(layout)}
        case TensorResult(tensor):
            return {"kind": "tensor", "tensor": tensor.tensor}
        case AliasResult(tensor, layout):
            views = {"base": layout.base, "steps": [_step(step) for step in layout.steps]}
            return {"kind": "alias", "tensor": tensor.tensor, "layout": _layout(layout) | views}
        case NumberResult(tensor):
            return {"kind": "number", "tensor": tensor.tensor}
        case ConstantResult(bool() | int() | float() | str() | None as value):
            return {"kind": "constant", "value": value}
        case ConstantResult(value):
            raise NotPossible(
                f"output {number} of {graph.name} is a Python object that cannot be written to a file",
                got=f"{value!r} ({type(value).__name__})",
            )


def as_written(result: Result) -> Result:
    """Return a view with symbolic sizes as a plain tensor result."""
    if isinstance(result, AliasResult) and any(map(is_symbol, result.layout.numbers)):
        return TensorResult(result.tensor, result.layout)
    return result


def _read_result(graph: Graph, row: dict[str, Any]) -> Result:
    match row:
        case {"kind": "tensor", "tensor": edge, "layout": layout}:
            return TensorResult(_find(graph, edge), _as_layout(**layout))
        case {"kind": "tensor", "tensor": edge}:
            return TensorResult(_find(graph, edge))
        case {"kind": "alias", "tensor": edge, "layout": {"base": int()} as layout}:
            return AliasResult(_find(graph, edge), _as_layout(**layout))
        case {"kind": "number", "tensor": edge}:
            return NumberResult(_find(graph, edge))
        case {"kind": "constant", "value": value}:
            return ConstantResult(value)
        case _:
            raise BadGraph(
                f"{graph.name} has a result of an unknown kind",
                got=str(row),
                near="'tensor', 'number', 'alias' with the layout of a view, 'constant' with a value",
            )


def _find(graph: Graph, edge: str) -> Tensor:
    name, _, index = edge.rpartition(":")
    op = graph.by_name.get(name)
    if op is None or not 0 <= int(index) < len(op.outputs):
        raise BadGraph(f"{graph.name} returns {edge!r}, which is not one of its tensors")
    return op.outputs[int(index)]


def _layout(layout: Layout) -> dict[str, Any]:
    """Return sizes and strides, with an example of symbolic ones."""
    return {
        "sizes": [hint(size) for size in layout.sizes],
        "strides": [hint(step) for step in layout.strides],
        "offset": hint(layout.offset),
        "dtype": str(layout.dtype).removeprefix("torch."),
        "device": str(layout.device),
        "storage": layout.storage,
        "is_example": layout.is_example or any(map(is_symbol, (*layout.sizes, *layout.strides))),
    }


def _as_layout(
    sizes: list[int], strides: list[int], dtype: str, device: str, steps: Sequence[Any] = (), **rest: Any
) -> Layout:
    numbers = [*sizes, *strides, rest.get("offset", 0), rest.get("storage", 0)]
    if len(sizes) != len(strides) or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise BadGraph(
            "a result has an impossible layout",
            got=f"sizes {sizes}, strides {strides}, {rest}"[:200],
        )
    outputs = tuple(_as_step(*step) for step in steps)
    where = torch.device(device)
    return Layout(tuple(sizes), tuple(strides), dtype=_named(dtype), device=where, steps=outputs, **rest)


def _step(step: ViewStep) -> list[Any]:
    return [str(step.target), _plain(step.args), _plain(step.kwargs), step.place, step.item]


def _as_step(target: str, args: list[Any], kwargs: dict[str, Any], place: int, item: int | None) -> ViewStep:
    found = find_overload(target)
    if not makes_views(found):
        raise BadGraph(f"a result is a view by {target!r}, which is not a view op here")
    named = {key: _value(value) for key, value in kwargs.items()}
    return ViewStep(found, tuple(_value(value) for value in args), named, place, item)


def _plain(value: Any) -> Any:
    """Return an argument of a view as JSON: numbers, lists of them, a dtype by name."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return {"dtype": str(value).removeprefix("torch.")} if isinstance(value, torch.dtype) else value


def _value(value: Any) -> Any:
    return _named(value["dtype"]) if isinstance(value, dict) else value


def _named(dtype: str) -> torch.dtype:
    return getattr(torch, dtype)
