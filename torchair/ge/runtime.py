"""Runtime facts of a graph as private graph attributes, so that a graph written to a file can still be run.

`_torchair_feeds` and `_torchair_results` hold `Graph.feeds` and `Graph.results` as JSON. A graph that comes
without them gets the obvious ones: input number i is argument number i, and the results are what NetOutput
reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchair.core.errors import BadGraph, NotPossible
from torchair.core.torch_private.ops import find_overload
from torchair.fxgraph.layout import Layout, Step
from torchair.fxgraph.symbols import hint, is_symbol
from torchair.ge.attr import Attr, Str
from torchair.ge.descriptor import input_desc
from torchair.ge.graph import Feed, Graph, Result, Tensor

FEEDS, RESULTS = "_torchair_feeds", "_torchair_results"


def runtime_attrs(graph: Graph) -> dict[str, Attr]:
    """The facts as attributes; none for a graph that has no facts (one just built by hand)."""
    if not graph.feeds and not graph.results:
        return {}
    feeds = {name: [feed.kind, list(feed.args)] for name, feed in graph.feeds.items()}
    results = [_write(graph, number, result) for number, result in enumerate(graph.results)]
    return {FEEDS: Str(json.dumps(feeds)), RESULTS: Str(json.dumps(results))}


def take_runtime_attrs(graph: Graph) -> None:
    """Fill `feeds` and `results` from the attributes, which go; else with the obvious ones."""
    feeds, results = graph.attrs.pop(FEEDS, None), graph.attrs.pop(RESULTS, None)
    if feeds is None or results is None:
        graph.feeds = {op.name: Feed("value", (number,)) for number, op in enumerate(graph.inputs)}
        graph.results = _obvious_results(graph)
        return
    graph.feeds = {name: Feed(kind, tuple(args)) for name, (kind, args) in json.loads(feeds.value).items()}
    graph.results = [_read(graph, row) for row in json.loads(results.value)]


def _obvious_results(graph: Graph) -> list[Result]:
    output = graph.output
    made: list[Result] = []
    for slot in output.slots if output is not None else ():
        if slot.tensor is None:
            continue
        desc = input_desc(output, slot) if output is not None else slot.desc
        known = desc.shape is not None and -2 not in desc.shape
        sizes = [2 if size < 0 else size for size in desc.shape or ()]
        made.append(Result("tensor", slot.tensor, layout=_in_order(sizes, len(made)) if known else None))
    return made


def _in_order(sizes: Sequence[int], storage: int) -> Layout:
    """Dims in their own order, whatever their sizes turn out to be."""
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    return Layout(
        tuple(sizes), tuple(strides), 0, torch.float32, torch.device("cpu"), storage, is_example=True
    )


def _write(graph: Graph, number: int, result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": result_kind(result)}
    if result.kind == "constant":
        if not isinstance(result.value, bool | int | float | str | None):
            raise NotPossible(
                f"output {number} of {graph.name} is a Python object that no file can hold",
                got=f"{result.value!r} ({type(result.value).__name__})",
            )
        return row | {"value": result.value}
    if result.tensor is not None:
        row["tensor"] = result.tensor.tensor
    if result.layout is not None:
        row["layout"] = _layout(result.layout, row["kind"])
    return row


def result_kind(result: Result) -> str:
    """A view whose sizes vary is read from its tensor, like any other result."""
    if result.kind != "alias" or result.layout is None:
        return result.kind
    return "tensor" if any(map(is_symbol, result.layout.numbers)) else "alias"


def _read(graph: Graph, row: dict[str, Any]) -> Result:
    tensor = _find(graph, row["tensor"]) if "tensor" in row else None
    layout = _as_layout(**row["layout"]) if "layout" in row else None
    return Result(row["kind"], tensor, row.get("value"), layout)


def _find(graph: Graph, edge: str) -> Tensor:
    name, _, index = edge.rpartition(":")
    op = graph.by_name.get(name)
    if op is None or not 0 <= int(index) < len(op.outputs):
        raise BadGraph(f"{graph.name} returns {edge!r}, which is none of its tensors")
    return op.outputs[int(index)]


def _layout(layout: Layout, kind: str) -> dict[str, Any]:
    """Sizes and strides, an example of them where they are symbols; the views that an alias is."""
    row: dict[str, Any] = {
        "sizes": [hint(size) for size in layout.sizes],
        "strides": [hint(step) for step in layout.strides],
        "offset": hint(layout.offset),
        "dtype": str(layout.dtype).removeprefix("torch."),
        "device": str(layout.device),
        "storage": layout.storage,
        "is_example": layout.is_example or any(map(is_symbol, (*layout.sizes, *layout.strides))),
    }
    if kind == "alias":
        row["base"], row["steps"] = layout.base, [_step(step) for step in layout.steps]
    return row


def _as_layout(
    sizes: list[int], strides: list[int], dtype: str, device: str, steps: Sequence[Any] = (), **rest: Any
) -> Layout:
    made = tuple(_as_step(*step) for step in steps)
    where = torch.device(device)
    return Layout(tuple(sizes), tuple(strides), dtype=_named(dtype), device=where, steps=made, **rest)


def _step(step: Step) -> list[Any]:
    return [str(step.target), _plain(step.args), _plain(step.kwargs), step.place, step.item]


def _as_step(target: str, args: list[Any], kwargs: dict[str, Any], place: int, item: int | None) -> Step:
    found = find_overload(target)
    if found is None:
        raise BadGraph(f"a result is viewed by {target!r}, which is no operator here")
    named = {key: _value(value) for key, value in kwargs.items()}
    return Step(found, tuple(_value(value) for value in args), named, place, item)


def _plain(value: Any) -> Any:
    """An argument of a view as JSON: numbers, lists of them, a dtype by name."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return {"dtype": str(value).removeprefix("torch.")} if isinstance(value, torch.dtype) else value


def _value(value: Any) -> Any:
    return _named(value["dtype"]) if isinstance(value, dict) else value


def _named(dtype: str) -> torch.dtype:
    return getattr(torch, dtype)
