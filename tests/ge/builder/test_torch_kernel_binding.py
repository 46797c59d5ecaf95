"""Ops that a torch op runs: what is hidden, what is skipped, what a file may say."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import torchair.backend.pipeline.compile  # noqa: F401 - fills the registries as a user's import does
from torchair import ge
from torchair.backend.export.import_foreign import normalize_foreign_graph
from torchair.core.errors import BadGraph, UnsupportedOp
from torchair.engine.interpret import interpret
from torchair.ge.attr import Str
from torchair.ge.builder.build import add_op
from torchair.ge.builder.torch_kernel_binding import CALL, HIDDEN, TorchCall, hold, skipped
from torchair.ge.files.text import from_python, to_python
from torchair.ge.files.verify import verify
from torchair.ge.graph import ArgumentFeed, Graph, TensorResult
from torchair.ge.proto.equality import same_graph
from torchair.ge.proto.read import from_model
from torchair.ge.proto.write import to_bytes

aten = torch.ops.aten


def graph() -> Graph:
    """`aten.max.dim` as two ops behind a third: one call, of which the second op takes its value."""
    made = Graph("face")
    with made:
        x = ge.Data(index=0, dtype=0, shape=[3, 4])
        inner = add_op("FaceTestInner", {"x": x}, {}, [("y", None)])
        low = add_op("FaceTestLow", {"x": inner}, {}, [("y", None)])
        high = add_op("FaceTestHigh", {"x": inner}, {}, [("y", None)])
        made.feeds = {x.op.name: ArgumentFeed(0)}
        made.results = [TensorResult(high), TensorResult(low)]
        add_op("NetOutput", {"input": [high, low]}, {}, [])
    hold([inner.op, low.op, high.op], TorchCall(aten.max.dim, [x, 0], {}), {low: 0, high: 1})
    return made


def test_one_call_gives_all_values() -> None:
    made, x = graph(), torch.randn(3, 4)
    verify(made)
    assert [op.type for op in skipped(made)] == ["FaceTestInner"]
    low, high = x.max(dim=0)
    torch.testing.assert_close(interpret(made, [x], torch.device("cpu")), [high, low])
    targets = [json.loads(op.attrs[CALL].value).get("target") for op in made.ops if CALL in op.attrs]
    assert targets == ["aten.max.dim", None]


@pytest.mark.parametrize("way", ["wire", "text"])
def test_written_and_read(way: str) -> None:
    made, x = graph(), torch.randn(3, 4)
    back = from_model(to_bytes(made, runtime=True)) if way == "wire" else from_python(to_python(made))
    assert same_graph(made, back, descriptors=False) is None
    assert any(slot.name.startswith(HIDDEN) for op in back.ops for slot in op.slots)
    normalize_foreign_graph(back)
    results = interpret(back, [x], torch.device("cpu"))
    torch.testing.assert_close(results, interpret(made, [x], torch.device("cpu")))


def with_call(change: dict[str, Any] | str) -> bytes:
    made = graph()
    op = made.by_name["FaceTestLow"]
    facts = json.loads(op.attrs[CALL].value)
    if isinstance(change, dict):
        op.attrs[CALL] = Str(json.dumps(facts | change))
    else:
        op.attrs = {CALL: Str(json.dumps(facts))}
        text = to_bytes(made, runtime=True)
        return text.replace(b'"reads"', b'"raeds"')
    return to_bytes(made, runtime=True)


@pytest.mark.parametrize(
    "change",
    [{"reads": [9]}, {"reads": 1}, {"target": 3}, {"makes": [0]}, "other words"],
    ids=["no such slot", "no list", "no name", "too few", "other words"],
)
def test_a_damaged_call_is_refused(change: Any) -> None:
    with pytest.raises(BadGraph):
        from_model(with_call(change))


@pytest.mark.parametrize(
    ("target", "args"),
    [
        ("aten.from_file.default", '[["/tmp/x"], {}]'),
        ("higher_order.cond", "[[], {}]"),
        ("nowhere.at_all.default", "[[], {}]"),
        ("higher_order.auto_functionalized_v2", '[[{"op": "aten.from_file.default"}], {}]'),
        ("higher_order.auto_functionalized_v2", '[[], {"_mutable_op": {"op": "aten.from_file.default"}}]'),
    ],
)
def test_a_file_runs_only_what_is_converted_here(target: str, args: str) -> None:
    back = from_model(with_call({"target": target, "args": args}))
    with pytest.raises(UnsupportedOp, match="FaceTestLow"):
        normalize_foreign_graph(back)
