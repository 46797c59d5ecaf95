"""Files as others read them: with a schema made from the tables of the format, and nothing of the package."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.backend.export import wire
from tests.backend.export.test_round_trip import Cache, Counter, Net, exported
from torchair.ge.files import air_file

X, Y = torch.randn(3, 8), torch.randn(3, 8)
CASES = {
    "net": (lambda: Net().eval(), (X,), {"y": Y}, False),
    "net of all sizes": (lambda: Net().eval(), (X,), {"y": Y}, True),
    "written": (Cache, (torch.zeros(6, 4), torch.randn(2, 4), torch.tensor([1, 4])), {}, False),
    "states": (Counter, (torch.randn(3, 4),), {}, True),
    "half": (lambda: nn.Linear(8, 4).to(torch.bfloat16), (X.bfloat16(),), {}, False),
}


def check(folder: Path, name: str = "net.air") -> Any:
    """What is promised of every file: one graph, dense indices, edges that lead somewhere, names listed,
    digests of all files.
    """
    model = wire.read(folder / name)
    assert (model.name, model.version, model.custom_version, len(model.graph)) == ("", 0, "", 1)
    graph = model.graph[0]
    ops = {op.name: op for op in graph.op}
    assert len(ops) == len(graph.op)
    inputs = [op for op in graph.op if op.type in ("Data", "RefData")]
    kinds = [op.type for op in sorted(inputs, key=lambda op: op.attr["index"].i)]
    assert sorted(op.attr["index"].i for op in inputs) == list(range(len(inputs)))
    assert kinds == sorted(kinds), "plain inputs first"
    for op in graph.op:
        edges = [edge for edge in op.input if not edge.endswith(":-1")]
        assert len(edges) == (0 if op.type in ("Data", "RefData") else len(op.input_desc))
        for edge in filter(None, op.input):
            producer, _, index = edge.rpartition(":")
            assert -1 <= int(index) < len(ops[producer].output_desc)
        for side, descs in (("input", op.input_desc), ("output", op.output_desc)):
            assert [s.decode() for s in op.attr[f"_{side}_name_key"].list.s] == [desc.name for desc in descs]
            assert list(op.attr[f"_{side}_name_value"].list.i) == list(range(len(descs)))
        if op.type not in ("Data", "RefData"):
            assert all(desc.dtype and desc.layout == "ND" for desc in op.output_desc)
    (output,) = [op for op in graph.op if op.type == "NetOutput"]
    placements = graph.attr["_input_placements"].list
    assert (list(placements.i), placements.val_type) == ([0] * len(inputs), 0)
    assert len(graph.attr["_output_dtypes"].list.i) == len(output.input_desc)
    lines = (folder / f"{name}.sha256").read_text().splitlines()
    listed = {file: digest for digest, _, file in (line.partition("  ") for line in lines)}
    assert name in listed
    for file, digest in listed.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest
    return graph


@pytest.mark.parametrize("case", CASES)
def test_every_graph_file_matches_the_format(case: str, tmp_path: Path) -> None:
    make, args, kwargs, dynamic = CASES[case]
    exported(make(), tmp_path, *args, dynamic=dynamic, **kwargs)
    graph = check(tmp_path)
    call = json.loads(graph.attr["_torchair_call"].s)
    assert sum("number" not in row for row in call["inputs"]) == len(args) + len(kwargs) + (case == "states")


def test_values_and_sizes(tmp_path: Path) -> None:
    net = Net().eval()
    exported(net, tmp_path, X, y=Y, dynamic=True)
    ops = check(tmp_path).op
    stored = {op.attr["value"].t.data for op in ops if op.type == "Const"}
    assert {net.shift.numpy().tobytes(), net.a.bias.detach().numpy().tobytes()} <= stored
    shapes = {op.name: list(op.output_desc[0].shape.dim) for op in ops if op.type == "Data"}
    assert [-1, 8] in shapes.values()
    assert all(op.output_desc[0].device_type == "CPU" for op in ops if op.type == "Data")
    numbers = [op.attr["dst_type"].i for op in ops if op.type == "Cast"]
    assert all(number in wire.RUNTIME.values() for number in numbers)


def test_weights_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(air_file, "EXTERNAL_FROM", 10)
    net = nn.Linear(8, 4).to(torch.bfloat16)
    exported(net, tmp_path, X.bfloat16())
    rows = {op.name: op for op in check(tmp_path).op if op.type == "FileConstant"}
    (weight,) = [op for op in rows.values() if list(op.attr["shape"].list.i) == [4, 8]]
    assert weight.attr["shape"].list.val_type == 2
    assert weight.attr["dtype"].dt == wire.RUNTIME["BF16"]
    assert weight.attr["file_path"].s.decode() == str(tmp_path / "weight")
    assert weight.attr["file_id"].s == b""
    assert (tmp_path / "weight").read_bytes() == net.weight.detach().view(torch.int16).numpy().tobytes()


def test_the_schema_finds_what_is_unknown(tmp_path: Path) -> None:
    exported(nn.Linear(8, 4), tmp_path, X)
    data = (tmp_path / "net.air").read_bytes()
    model = wire.message(data=data)
    model.graph[0].op[0].MergeFromString(b"\xf8\x07\x01")  # field 127
    assert list(wire.unknown_in(model)) == [".graph.op: field 127"]
