"""Files of graphs: what is refused, what is left behind, what others read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import torchair
from tests.backend.export.test_round_trip import exported
from tests.support.models import mlp
from torchair.__main__ import main
from torchair.backend.export import cluster_config as cluster
from torchair.core.errors import BadGraph, BadPath, NotInThisMode, NotPossible
from torchair.ge.attr import Str
from torchair.ge.files import air_file
from torchair.ge.graph import Graph, Op
from torchair.ge.proto import schema
from torchair.ge.proto.read import from_model
from torchair.ge.proto.write import to_bytes


@pytest.fixture
def net() -> nn.Module:
    return mlp(4, 8, 2)


X = torch.randn(3, 4)


def test_a_changed_file_is_refused(net: nn.Module, tmp_path: Path) -> None:
    exported(net, tmp_path, X)
    path = tmp_path / "net.air"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(BadGraph, match="differs from what was exported"):
        torchair.load_air(path)
    done = subprocess.run(
        ["sha256sum", "-c", "net.air.sha256"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 1


def test_links_are_not_followed(net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    torchair.dynamo_export(X, model=net, export_path=str(tmp_path / "link"))
    assert not list((tmp_path / "real").iterdir())


def test_two_weights_are_never_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.a_weight = nn.Parameter(torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.a_weight

    exported(Twice(), tmp_path, X)
    monkeypatch.setattr(air_file, "EXTERNAL_FROM", 10)
    with pytest.raises(NotPossible, match="have the same file name"):
        exported(Twice(), tmp_path, X)


def test_the_last_part_is_the_name(net: nn.Module, tmp_path: Path) -> None:
    torchair.dynamo_export(X, model=net, export_path=str(tmp_path / "a" / "b"), export_name="c/d")
    assert (tmp_path / "a" / "b" / "d.air").is_file()


@pytest.mark.parametrize("fails", ["write_bytes", "write_weights"])
def test_an_interrupt_leaves_what_was_there(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    exported(net, tmp_path, X)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(air_file, "EXTERNAL_FROM", 10)
    first = getattr(air_file, fails)

    def interrupted(into: Any, *rest: Any) -> None:
        first(into, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(air_file, fails, interrupted)
    with pytest.raises(KeyboardInterrupt):
        exported(nn.Linear(4, 4), tmp_path, X)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_op_without_converter_is_refused(tmp_path: Path) -> None:
    @torch.library.custom_op("airtest::exported", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    op.register_fake(torch.empty_like)

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return op(x)

    with pytest.raises(NotPossible, match=r"(?s)no converter to the IR.*airtest.exported.*test_files.py"):
        exported(Custom(), tmp_path, X)
    assert not list(tmp_path.iterdir())


def test_the_mode_and_other_options(net: nn.Module, tmp_path: Path) -> None:
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    with pytest.raises(NotInThisMode):
        exported(net, tmp_path, X, config=config)
    with pytest.raises(NotInThisMode):
        torchair.load_air(tmp_path / "net.air", config=config)
    with pytest.raises(BadPath, match="no such file"):
        torchair.load_air(tmp_path / "net.air")


def test_the_file_is_a_model_of_one_graph(net: nn.Module, tmp_path: Path) -> None:
    exported(net, tmp_path, X)
    model = schema.message("ModelDef")
    model.ParseFromString((tmp_path / "net.air").read_bytes())
    assert (model.name, len(model.graph)) == ("", 1)
    kinds = [op.type for op in model.graph[0].op]
    assert kinds.count("Data") == 1
    weights = [op for op in model.graph[0].op if op.type == "Const" and op.output_desc[0].dtype]
    assert {tuple(op.attr["value"].t.desc.shape.dim) for op in weights} >= {(8, 4), (8,), (2, 8), (2,)}
    assert 'op: "Data"' in (tmp_path / "dynamo.pbtxt").read_text()


def test_a_graph_of_another_producer(net: nn.Module, tmp_path: Path) -> None:
    """It says nothing of how it is called: its inputs come in their order, sizes as descriptors have them."""
    exported(net, tmp_path, X, dynamic=True)
    graph = from_model((tmp_path / "net.air").read_bytes())
    graph.attrs = {name: attr for name, attr in graph.attrs.items() if not name.startswith("_torchair")}
    (tmp_path / "other.air").write_bytes(to_bytes(graph, normalised=True))
    loaded = torchair.load_air(tmp_path / "other.air")
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4)
        numbers = [torch.tensor(rows)] if len(loaded.form.inputs) == 2 else []
        with torch.no_grad():
            torch.testing.assert_close(loaded(*numbers, x), (net(x),))


def test_modules_are_recorded(tmp_path: Path) -> None:
    config = torchair.CompilerConfig()
    config.export.experimental.enable_record_nn_module_stack = True
    deep = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    exported(deep, tmp_path, X, config=config)
    graph = from_model((tmp_path / "net.air").read_bytes())
    found = {op.type: op.attrs["nn_module_stack"].value for op in graph.ops if "nn_module_stack" in op.attrs}
    assert found["Relu"] == "0.1"


def test_templates_for_several_devices() -> None:
    graph = Graph("talks")
    op = Op("HcomAllReduce", "HcomAllReduce")
    op.attrs["group"] = Str("3")
    graph.add(op)
    with mock.patch.object(cluster, "_ranks", return_value=[0, 1]):
        assert cluster.groups_of(graph) == {"3": [0, 1]}
    files = cluster.cluster_files("net", range(2), {"3": [0, 1]})
    relation, numa = (json.loads(files[name]) for name in ("model_relation_config.json", "numa_config.json"))
    assert relation["deploy_config"][1] == {"submodel_name": "net1.air", "deploy_device_id_list": "0:0:1"}
    assert relation["comm_group"] == [{"group_name": "3", "group_rank_list": "[0, 1]"}]
    assert numa["cluster"][0]["cluster_nodes"][0]["item_list"] == [{"item_id": 0}, {"item_id": 1}]


def test_show_and_run_commands_read_a_graph_file(
    net: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(net, tmp_path, X)
    np.save(tmp_path / "x.npy", X.numpy())
    asked = [str(tmp_path / "net.air"), "--input", str(tmp_path / "x.npy"), "--save", str(tmp_path / "out")]
    assert main(["run", *asked]) == 0
    with torch.no_grad():
        np.testing.assert_allclose(
            np.load(tmp_path / "out/output_0.npy"), net(X).numpy(), rtol=1e-5, atol=1e-6
        )
    assert "torch.float32 [3, 2]" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "net.air")]) == 0
    shown = capsys.readouterr().out
    assert "Gelu" in shown
    assert "4 weights" in shown
    assert main(["run", str(tmp_path / "none.air")]) == 2


class Counter(nn.Module):
    """Counts its calls, from a number on."""

    count: torch.Tensor

    def __init__(self, first: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor([first]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


def test_models_of_one_folder_do_not_disturb_each_other(net: nn.Module, tmp_path: Path) -> None:
    x = torch.ones(3)
    for name, model in (("a", Counter(4)), ("b", Counter(8))):
        torchair.dynamo_export(x, model=model, export_path=str(tmp_path), export_name=name)
    torchair.dynamo_export(x, model=nn.ReLU(), export_path=str(tmp_path), export_name="c")
    for name, wanted in (("a", 5.0), ("b", 9.0), ("c", 1.0)):
        torch.testing.assert_close(torchair.load_air(tmp_path / f"{name}.air")(x), x * wanted)


def test_digests_tell_of_the_graph(tmp_path: Path) -> None:
    torchair.dynamo_export(torch.ones(3), model=nn.ReLU(), export_path=str(tmp_path))
    (tmp_path / "export.air.sha256").write_text("")
    with pytest.raises(BadGraph, match="has no digest of"):
        torchair.load_air(tmp_path / "export.air")


def test_weights_without_values(tmp_path: Path) -> None:
    model = nn.Linear(3, 4, device="meta")
    with pytest.raises(NotPossible, match="weights on the meta device"):
        torchair.dynamo_export(torch.empty(2, 3, device="meta"), model=model, export_path=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_what_is_no_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torchair.dynamo_export(torch.ones(3), model=nn.ReLU(), export_path=str(tmp_path))
    (tmp_path / "x.npy").write_bytes(b"hello")
    assert main(["run", str(tmp_path / "export.air"), "--input", str(tmp_path / "x.npy")]) == 2
    assert "is not a numeric array" in capsys.readouterr().err
