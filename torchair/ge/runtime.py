"""Runtime facts of a graph as private graph attributes, so that a graph written to a file can still be run.

`_torchair_feeds` and `_torchair_results` hold `Graph.feeds` and `Graph.results` as JSON. A graph that comes
without them gets the obvious ones: input number i is argument number i, and the results are what NetOutput
reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch

from torchair.core.errors import BadGraph, NotPossible
from torchair.core.torch_private import FakeTensorMode
from torchair.ge.attr import Attr, Str
from torchair.ge.descriptor import input_desc
from torchair.ge.graph import Feed, Graph, Result, Tensor
from torchair.ge.host import is_symbol

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
        sizes = (
            None
            if desc.shape is None or -2 in desc.shape
            else [2 if size < 0 else size for size in desc.shape]
        )
        made.append(Result("tensor", slot.tensor, meta=None if sizes is None else _stand_in(sizes)))
    return made


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
    if isinstance(result.meta, torch.Tensor):
        row["meta"] = _layout(result.meta)
    if row["kind"] == "alias":
        row["arg"] = result.arg
    return row


def result_kind(result: Result) -> str:
    """A view whose sizes vary is read from its tensor, like any other result."""
    if result.kind != "alias":
        return result.kind
    meta = result.meta
    parts = (*meta.shape, *meta.stride(), meta.storage_offset())
    return "tensor" if any(is_symbol(part) for part in parts) else "alias"


def _read(graph: Graph, row: dict[str, Any]) -> Result:
    tensor = _find(graph, row["tensor"]) if "tensor" in row else None
    meta = None if "meta" not in row else _stand_in(**row["meta"])
    return Result(row["kind"], tensor, row.get("value"), row.get("arg", -1), meta)


def _find(graph: Graph, edge: str) -> Tensor:
    name, _, index = edge.rpartition(":")
    op = graph.by_name.get(name)
    if op is None or not 0 <= int(index) < len(op.outputs):
        raise BadGraph(f"{graph.name} returns {edge!r}, which is none of its tensors")
    return op.outputs[int(index)]


def _layout(meta: torch.Tensor) -> dict[str, Any]:
    """Sizes, strides, offset. For a symbol its example value: then only the order of the strides counts."""
    return {
        "size": [_number(size) for size in meta.shape],
        "stride": [_number(step) for step in meta.stride()],
        "offset": _number(meta.storage_offset()),
        "dtype": str(meta.dtype).removeprefix("torch."),
        "device": str(meta.device),
    }


def _number(value: Any) -> int:
    if not is_symbol(value):
        return int(value)
    return int(value.node.hint) if value.node.has_hint() else 2


def _stand_in(
    size: Sequence[int],
    stride: Sequence[int] | None = None,
    offset: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
) -> torch.Tensor:
    """A fake tensor with this layout."""
    if stride is None:
        stride = [math.prod(size[dim + 1 :]) for dim in range(len(size))]
    length = offset + 1 + sum(max(extent - 1, 0) * step for extent, step in zip(size, stride, strict=True))
    with FakeTensorMode():
        return torch.empty(length, dtype=getattr(torch, dtype), device=device).as_strided(
            size, stride, offset
        )
