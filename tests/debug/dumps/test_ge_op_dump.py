"""`dump_config` in graph mode: which ops, sides and runs are written, by options and by file, and what."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from google.protobuf import text_format

import torchair
from tests.debug.seen import Seen
from tests.models.zoo import ROWS
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOption, DegradedWarning
from torchair.debug.dumps.dump_plan import plan_of, steps_of
from torchair.debug.dumps.ge_op_dump import layers
from torchair.debug.dumps.options import DebugOptions
from torchair.ge.graph import Graph
from torchair.ge.proto import schema

RANK = "worldsize1_global_rank0"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of a dump are written into the working directory."""
    monkeypatch.chdir(tmp_path)


class File(NamedTuple):
    """The parts of a name."""

    type: str
    op: str
    task: int
    side: str
    index: int
    path: Path


def files(folder: Path) -> list[File]:
    name = re.compile(r"(\w+)\.([\w-]+)\.(\d+)\.0\.\d{20}\.(input|output)\.(\d+)\.npy")
    found = []
    for path in sorted(folder.iterdir()):
        match = name.fullmatch(path.name)
        assert match, path.name
        assert path.stat().st_mode & 0o777 == 0o640
        found.append(File(match[1], match[2], int(match[3]), match[4], int(match[5]), path))
    return found


def steps(root: Path, graph: str) -> dict[int, Path]:
    """The folders of the runs of a graph, by number."""
    (model,) = (path for path in root.glob(f"*/0/{graph}/*") if re.fullmatch(r"\d{14}", path.parts[-4]))
    assert model.name == graph.rpartition("_")[2]
    return {int(path.name): path for path in model.iterdir()}


def config(**options: Any) -> torchair.CompilerConfig:
    made = torchair.CompilerConfig()
    made.dump_config.dump_path = "."
    made.dump_config.enable_dump = True
    for name, value in options.items():
        setattr(made.dump_config, name, value)
    return made


def update_and_multiply(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.add_(x)
    return torch.relu(cache * 2) @ x.t()


def call_and_compare(asked: torchair.CompilerConfig, calls: int = 1) -> tuple[str, list[torch.Tensor]]:
    """Call `update_and_multiply`, compare with eager; the name of its graph and the results."""
    backend, mine, theirs = Seen(asked), torch.zeros(2, 3), torch.zeros(2, 3)
    compiled, results = torch.compile(update_and_multiply, backend=backend, dynamic=False), []
    with torch.no_grad():
        for number in range(calls):
            x = torch.randn(2, 3) + number
            results.append(compiled(mine, x))
            torch.testing.assert_close(results[-1], update_and_multiply(theirs, x))
            torch.testing.assert_close(mine, theirs)
    return backend.calls[0].graph, results


def test_every_op_of_every_run(tmp_path: Path) -> None:
    graph, results = call_and_compare(config(), calls=2)
    folders = steps(tmp_path / RANK, graph)
    assert sorted(folders) == [0, 1]
    for step, result in enumerate(results):
        found = {(item.type, item.side, item.index): item for item in files(folders[step])}
        product = found["MatMul", "output", 0]
        np.testing.assert_array_equal(np.load(product.path), result.numpy())
        assert ("MatMul", "input", 1) in found
        tasks = {item.op: item.task for item in found.values()}
        assert tasks["Relu"] < tasks["MatMul"]
        assert "Const" not in {item.type for item in found.values()}


def test_what_an_op_writes_is_dumped_as_it_was(tmp_path: Path) -> None:
    graph, _ = call_and_compare(config(), calls=2)
    before: dict[int, np.ndarray] = {}
    for step, folder in steps(tmp_path / RANK, graph).items():
        (path,) = [
            item.path
            for item in files(folder)
            if (item.type, item.side, item.index) == ("Assign", "input", 0)
        ]
        before[step] = np.load(path)
    assert not before[0].any()
    assert before[1].any()


@pytest.mark.parametrize(
    ("mode", "sides"), [("input", {"input"}), ("output", {"output"}), ("all", {"input", "output"})]
)
def test_dump_mode_selects_inputs_and_outputs(tmp_path: Path, mode: str, sides: set[str]) -> None:
    graph, _ = call_and_compare(config(dump_mode=mode))
    assert {item.side for item in files(steps(tmp_path / RANK, graph)[0])} == sides


def test_dump_step_selects_runs(tmp_path: Path) -> None:
    graph, _ = call_and_compare(config(dump_step="0|2-3"), calls=5)
    assert sorted(steps(tmp_path / RANK, graph)) == [0, 2, 3]


def test_layers_and_the_inputs_that_feed_them(tmp_path: Path) -> None:
    graph, _ = call_and_compare(config(dump_layer="MatMul Relu"))
    found = files(steps(tmp_path / RANK, graph)[0])
    assert {item.type for item in found} == {"MatMul", "Relu", "Data"}
    assert len({item.op for item in found if item.type == "Data"}) == 1


def test_dump_layer_with_unknown_name_warns(tmp_path: Path) -> None:
    with pytest.warns(
        DegradedWarning, match="dump_config dumps nothing of graph graph_.*: it has no op named Nowhere"
    ):
        call_and_compare(config(dump_layer="Nowhere"))
    assert not list(tmp_path.glob("**/*.npy"))


def test_dump_data_stats_writes_statistics(tmp_path: Path) -> None:
    graph, results = call_and_compare(config(dump_data="stats"))
    folder = steps(tmp_path / RANK, graph)[0]
    assert [path.name for path in folder.iterdir()] == ["statistics.csv"]
    with (folder / "statistics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (row,) = [row for row in rows if (row["Op Type"], row["Input/Output"]) == ("MatMul", "output")]
    (result,) = results
    assert (row["Shape"], row["Data Type"], row["Data Size"]) == ("2x2", "float32", "16")
    assert float(row["Max Value"]) == pytest.approx(result.max().item())
    assert float(row["Min Value"]) == pytest.approx(result.min().item())
    assert float(row["Avg Value"]) == pytest.approx(result.mean().item())
    assert float(row["L2 Norm"]) == pytest.approx(result.norm().item())
    assert (row["Count"], row["Nan Count"], row["Inf Count"]) == ("4", "0", "0")


def test_statistics_are_of_the_tensor_not_of_its_array(tmp_path: Path) -> None:
    backend = Seen(config(dump_data="stats"))
    torch.compile(lambda x: x.bfloat16(), backend=backend)(torch.ones(4, 6))
    with (steps(tmp_path / RANK, backend.calls[0].graph)[0] / "statistics.csv").open(newline="") as file:
        (row,) = [r for r in csv.DictReader(file) if (r["Op Type"], r["Input/Output"]) == ("Cast", "output")]
    assert (row["Data Type"], row["Data Size"], row["Max Value"]) == ("bfloat16", "48", "1.0")


def test_the_options_are_handed_on(tmp_path: Path) -> None:
    first, _ = call_and_compare(config(dump_layer="Relu", quant_dumpable=True, dump_step="0"))
    torch.compiler.reset()
    second, _ = call_and_compare(config(dump_layer="Relu", quant_dumpable=True, dump_step="0"))
    (path,) = (tmp_path / "ge_dump_data_json").iterdir()
    assert path.name == f"dump_options_worldsize1_rank0_pid{os.getpid()}.json"
    assert json.loads(path.read_text()) == {
        "dump": {
            "dump_path": RANK,
            "dump_mode": "all",
            "dump_data": "tensor",
            "dump_step": "0",
            "quant_dumpable": "1",
            "dump_list": [{"model_name": name, "layer": ["Relu"]} for name in (first, second)],
        }
    }


def test_ops_in_a_scope_are_layers() -> None:
    graph = Graph("graph_1")
    with graph:
        x = torchair.ge.Sin(torchair.ge.Data(index=0, node_name="x"))
        graph.scopes = [{"torchair_enable_data_dump": torchair.ge.attr.Str("True")}]
        y = torchair.ge.Cos(x)
        graph.scopes = []
        torchair.ge.NetOutput([torchair.ge.Exp(y)])
    plan = plan_of(DebugOptions(enable_dump=True), Diagnostics())
    assert plan is not None
    assert layers(graph, plan) == {"Cos"}


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)).exp()


def test_ops_of_sub_graphs(tmp_path: Path) -> None:
    backend = Seen(config())
    with torch.no_grad():
        torch.compile(branches, backend=backend)(torch.ones(3))
    found = {
        (item.type, item.side, item.index): item
        for item in files(steps(tmp_path / RANK, backend.calls[0].graph)[0])
    }
    assert ("Sin", "output", 0) in found
    assert ("Cos", "output", 0) not in found
    np.testing.assert_array_equal(np.load(found["If", "input", 1].path), np.ones(3))
    np.testing.assert_array_equal(np.load(found["If", "output", 0].path), torch.ones(3).sin().numpy())


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_and_sizes(tmp_path: Path, dynamic: bool) -> None:
    model = torch.nn.Linear(4, 3)
    backend = Seen(config())
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    for batch in (2, 5):
        compiled(torch.randn(batch, 4)).sum().backward()
    graphs = {call.graph for call in backend.calls}
    assert len(graphs) == (2 if dynamic else 4)
    for graph in graphs:
        assert len(steps(tmp_path / RANK, graph)) == (2 if dynamic else 1)


def test_what_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / RANK).write_text("in the way")
    with pytest.warns(DegradedWarning, match="cannot write a dumped tensor"):
        call_and_compare(config())


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / RANK).symlink_to(tmp_path / "elsewhere")
    with pytest.warns(DegradedWarning, match="is a symbolic link"):
        call_and_compare(config())
    assert not list((tmp_path / "elsewhere").iterdir())


# By file


def by_file(tmp_path: Path, **dump: Any) -> torchair.CompilerConfig:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"dump": dump}))
    made = torchair.CompilerConfig()
    made.engine_config.codegen = "eager"
    made.dump_config.dump_config_path = str(path)
    return made


def next_graph() -> str:
    """The name that the graph compiled next will have: compiling this one takes one number."""
    backend = Seen(torchair.CompilerConfig())
    backend.config.debug.run_eagerly = True
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    torch.compiler.reset()
    return f"graph_{int(backend.calls[0].graph.rpartition('_')[2]) + 1}"


def test_a_model_by_file(tmp_path: Path) -> None:
    name = next_graph()
    entries = [{"model_name": name, "layer": ["Relu"]}]
    asked = by_file(
        tmp_path, dump_path=str(tmp_path / "out"), dump_list=entries, dump_mode="output", dump_op_switch="off"
    )
    graph, _ = call_and_compare(asked)
    assert graph == name
    found = files(steps(tmp_path / "out", graph)[0])
    assert {(item.type, item.side) for item in found} == {("Relu", "output")}
    assert not (tmp_path / "ge_dump_data_json").exists()


def test_other_models_are_compiled_as_usual(tmp_path: Path) -> None:
    asked = by_file(tmp_path, dump_path=str(tmp_path / "out"), dump_list=[{"model_name": "another"}])
    gm = torch.fx.symbolic_trace(lambda x: [torch.ops.aten.sin.default(x)])
    compiled = torchair.get_compiler(asked)(gm, [torch.ones(2)])
    compiled(torch.ones(2))
    assert compiled.runner.program.kind == "eager"
    assert not (tmp_path / "out").exists()


def test_options_win_over_the_file(tmp_path: Path) -> None:
    asked = by_file(tmp_path, dump_path=str(tmp_path / "out"), dump_mode="output", dump_data="stats")
    asked.dump_config.dump_mode = "input"
    graph, _ = call_and_compare(asked)
    with (steps(tmp_path / "out", graph)[0] / "statistics.csv").open(newline="") as file:
        assert {row["Input/Output"] for row in csv.DictReader(file)} == {"input"}


def test_overflow_dump_names_first_op_with_infinity(tmp_path: Path) -> None:
    """The op that makes the first infinity, and none of those that hand it on."""
    backend = Seen(by_file(tmp_path, dump_path=str(tmp_path / "out"), dump_debug="on"))
    with torch.no_grad():
        torch.compile(lambda x: (x.sin() + x).exp() * 2, backend=backend)(torch.full((3,), 1e3))
    found = files(steps(tmp_path / "out", backend.calls[0].graph)[0])
    assert {(item.type, item.side) for item in found} == {("Exp", "input"), ("Exp", "output")}


@pytest.mark.parametrize(
    ("dump", "text"),
    [
        ({"dump_list": [], "dump_op_switch": "on"}, "dump_op_switch 'on' .* has no effect"),
        (
            {
                "dump_scene": "watcher",
                "dump_mode": "output",
                "dump_list": [{"layer": ["A"], "watcher_nodes": ["B"]}],
            },
            "dump_scene 'watcher' .* has no effect",
        ),
        ({"dump_level": "op"}, "unknown keys of .* have no effect: dump_level"),
    ],
    ids=["single ops", "watcher", "unknown key"],
)
def test_dump_options_for_hardware_warn(tmp_path: Path, dump: dict[str, Any], text: str) -> None:
    with pytest.warns(DegradedWarning, match=text):
        call_and_compare(by_file(tmp_path, dump_path=str(tmp_path / "out"), **dump))


ENTRY = {"model_name": "graph_1"}
WRONG: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "cannot be read as JSON"),
    "no object": ("[]", "no object 'dump'"),
    "no dump": ('{"damp": {}}', "no object 'dump'"),
    "no path": ('{"dump": {"dump_list": []}}', "dump_path, the output directory, is missing"),
    "a mode": ('{"dump": {"dump_path": "x", "dump_mode": "both"}}', "dump_mode cannot be 'both'"),
    "a kind": ('{"dump": {"dump_path": 1}}', "dump_path cannot be 1"),
    "an entry": ('{"dump": {"dump_path": "x", "dump_list": ["graph_1"]}}', "an invalid entry 'graph_1'"),
    "no model": (
        '{"dump": {"dump_path": "x", "dump_list": [{"layer": ["A"]}]}}',
        "an invalid entry {'layer'",
    ),
    "a layer": (
        '{"dump": {"dump_path": "x", "dump_list": [{"model_name": "g", "layer": [1]}]}}',
        "an invalid entry",
    ),
    "two forms": (
        json.dumps({"dump": {"dump_path": "x", "dump_list": [ENTRY], "dump_debug": "on"}}),
        "mixes forms",
    ),
    "watcher with a model": (
        json.dumps(
            {
                "dump": {
                    "dump_path": "x",
                    "dump_scene": "watcher",
                    "dump_list": [{"layer": ["A"], "watcher_nodes": ["B"], **ENTRY}],
                }
            }
        ),
        "cannot have model_name",
    ),
    "watcher of inputs": (
        json.dumps(
            {
                "dump": {
                    "dump_path": "x",
                    "dump_scene": "watcher",
                    "dump_mode": "all",
                    "dump_list": [{"layer": ["A"], "watcher_nodes": ["B"]}],
                }
            }
        ),
        "a watcher needs a dump_list and dump_mode 'output'",
    ),
    "steps": ('{"dump": {"dump_path": "x", "dump_step": "5-2"}}', "invalid part: '5-2'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused(tmp_path: Path, case: str) -> None:
    text, match = WRONG[case]
    asked = by_file(tmp_path)
    (tmp_path / "dump.json").write_text(text)
    with pytest.raises(Exception, match=match) as caught:
        torch.compile(lambda x: x + 1, backend=Seen(asked))(torch.ones(2))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), BadOption)


def test_steps_are_ranges() -> None:
    assert steps_of("") == ()
    assert steps_of("0|2-4|07|") == (range(1), range(2, 5), range(7, 8))
    with pytest.raises(BadOption, match="invalid part"):
        steps_of("0-12-3")


def test_nothing_is_planned_by_default() -> None:
    assert plan_of(DebugOptions(), Diagnostics()) is None


# The same values by every way


def llama(asked: torchair.CompilerConfig) -> tuple[str, torch.Tensor]:
    row = next(row for row in ROWS if row.name == "llama")
    backend = Seen(asked)
    torch.compiler.reset()
    with torch.no_grad(), torch._dynamo.config.patch(row.dynamo):
        result = torch.compile(row.model(), backend=backend, dynamic=False)(**row.feed(row.shapes[0]))
    return backend.calls[0].graph, result[0]


def by_origin(folder: Path, dump: Path) -> Iterator[tuple[str, np.ndarray]]:
    """`node-target.OUTPUT.n` -> what the op of the IR made of it, matched by the graph dump."""
    graph = text_format.Parse(dump.read_text(), schema.message("GraphDef"))
    names = {
        (op.name, index): desc.attr["_fx_tensor_name"].s.decode()
        for op in graph.op
        for index, desc in enumerate(op.output_desc)
        if "_fx_tensor_name" in desc.attr
    }
    for item in files(folder):
        if item.side == "output" and (item.op, item.index) in names:
            yield names[item.op, item.index], np.load(item.path)


@pytest.mark.full
def test_all_dumps_have_the_same_values(tmp_path: Path) -> None:
    """The reference engine, the eager FX graph, capture mode; and the compiled graph has the same result."""
    plain = torchair.CompilerConfig()
    plain.engine_config.codegen = "inductor"
    _, expected = llama(plain)

    ir = config()
    ir.debug.graph_dump.type = "txt"
    graph, result = llama(ir)
    torch.testing.assert_close(result, expected)
    dump = next(tmp_path.glob(f"dynamo_optimized_{graph}_*.txt"))
    of_ir = dict(by_origin(steps(tmp_path / RANK, graph)[0], dump))

    data = torchair.CompilerConfig()
    data.debug.data_dump.type = "npy"
    data.debug.data_dump.path = str(tmp_path / "data")
    graph, result = llama(data)
    torch.testing.assert_close(result, expected)
    paths = (tmp_path / "data" / RANK / graph / "0").glob("*.OUTPUT.*.npy")
    of_fx = {re.sub(r"\.\d{20}\.npy$", "", path.name): np.load(path) for path in paths}

    capture = torchair.CompilerConfig()
    capture.mode = "npugraph_ex"
    capture.dump_config.enable_dump = True
    (tmp_path / "capture").mkdir()
    capture.dump_config.dump_path = str(tmp_path / "capture")
    _, result = llama(capture)
    torch.testing.assert_close(result, expected)
    of_capture = {path.name.removesuffix("_0.pt"): path for path in (tmp_path / "capture" / RANK).iterdir()}

    shared = of_ir.keys() & of_fx.keys()
    assert len(shared) > len(of_ir) * 0.8 > 30
    recorded = {name for name in shared if name.partition("-")[0] in of_capture}
    assert len(recorded) > len(shared) * 0.8
    for name in shared:
        np.testing.assert_allclose(of_ir[name], of_fx[name], rtol=1e-4, atol=1e-5, err_msg=name)
        if name in recorded:
            stored = torch.load(of_capture[name.partition("-")[0]])
            np.testing.assert_allclose(stored.numpy(), of_fx[name], rtol=1e-4, atol=1e-5, err_msg=name)
