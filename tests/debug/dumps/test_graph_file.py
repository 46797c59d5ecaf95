"""Graph dumps: which files, that they are the graph, and that the Python ones compute what the graph does."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from tests.debug.seen import Call, Seen, copied
from tests.models.zoo import ROWS
from tests.support.slow import STATIC_FIRST, slow
from torchair.core.errors import DegradedWarning, NotInThisMode, NotPossible
from torchair.debug.dumps.graph_file import constants_of
from torchair.ge.files.script import from_python
from torchair.ge.graph import Graph
from torchair.ge.proto import schema
from torchair.ge.proto.equality import same_graph
from torchair.ge.proto.read import from_graph_def

STAMP = rf"rank_0_pid_{os.getpid()}_ts_\d{{20}}"
STAGES = ("original", "optimized")
MODES = ("max-autotune", "npugraph_ex")
LARGE = list(range(5000))


def config(folder: Path, kind: str, mode: str = "max-autotune") -> torchair.CompilerConfig:
    made = torchair.CompilerConfig()
    made.mode = mode
    made.debug.graph_dump.type = kind
    made.debug.graph_dump.path = str(folder)
    made.engine_config.codegen = "eager"
    return made


def seen(function: Any, folder: Path, *args: Any, mode: str = "max-autotune", **dynamo: Any) -> list[Call]:
    """Compile with a Python dump and call once."""
    backend = Seen(config(folder, "py", mode))
    with torch.no_grad():
        torch.compile(function, backend=backend, **dynamo)(*args)
    return backend.calls


def script(folder: Path, stage: str, graph: str) -> Path:
    (path,) = folder.glob(f"dynamo_{stage}_{graph}_rank_*.py")
    return path


def check(folder: Path, calls: list[Call]) -> None:
    """Both scripts of each graph give what it gave, write what it wrote, and run by themselves."""
    assert calls
    for call in calls:
        for stage in STAGES:
            names = runpy.run_path(str(script(folder, stage, call.graph)))
            names["main"]()
            args = [copied(arg) for arg in call.args]
            torch.set_rng_state(call.random)
            torch.testing.assert_close(names["kernel"](*args), call.outputs, equal_nan=True)
            torch.testing.assert_close(args, call.left, equal_nan=True)


# Files


def softmax_of_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ weight, -1) + x.shape[0]


@pytest.mark.parametrize("kind", ["txt", "pbtxt", "py"])
def test_two_files_per_graph(tmp_path: Path, kind: str) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    backend = Seen(config(tmp_path / "new/folder", kind))
    torch.compile(broken, backend=backend)(torch.randn(3))
    graphs = [call.graph for call in backend.calls]
    assert len(set(graphs)) == 2
    found = sorted(path.name for path in (tmp_path / "new/folder").iterdir())
    assert len(found) == 4
    for name, (stage, graph) in zip(found, [(s, g) for s in sorted(STAGES) for g in graphs], strict=True):
        assert re.fullmatch(rf"dynamo_{stage}_{graph}_{STAMP}\.{kind}", name)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "new/folder").iterdir()}
    assert modes == {0o600 if kind == "py" else 0o640}
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "new/folder")} == {0o750}


def test_the_working_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = torchair.CompilerConfig()
    made.debug.graph_dump.dtype = "txt"  # the other name of `type`
    assert made.debug.graph_dump.type.value == made.debug.graph_dump.dtype.value == "txt"
    made.debug.run_eagerly = True
    torch.compile(softmax_of_product, backend=torchair.get_npu_backend(compiler_config=made))(
        torch.ones(2, 2), torch.ones(2, 2)
    )
    assert len(list(tmp_path.glob("dynamo_*.txt"))) == 2


def test_a_link_is_refused(tmp_path: Path) -> None:
    asked = config(tmp_path / "dumps", "txt")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dumps").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="symbolic link") as caught:
        torch.compile(softmax_of_product, backend=Seen(asked))(torch.ones(2, 2), torch.ones(2, 2))
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, NotPossible)
    assert isinstance(error, RuntimeError)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_graph_dump_in_unwritable_folder_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    backend = Seen(config(tmp_path / "file/dumps", "py"))
    x = torch.ones(2, 2)
    with pytest.warns(DegradedWarning, match="cannot write a graph dump: NotADirectoryError"):
        torch.testing.assert_close(
            torch.compile(softmax_of_product, backend=backend)(x, x), softmax_of_product(x, x)
        )


@pytest.mark.parametrize("kind", ["txt", "pbtxt"])
def test_capture_mode_has_no_ir(tmp_path: Path, kind: str) -> None:
    with pytest.raises(Exception, match="can only be 'py'") as caught:
        torch.compile(softmax_of_product, backend=Seen(config(tmp_path, kind, "npugraph_ex")))(
            torch.ones(2, 2), torch.ones(2, 2)
        )
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, NotInThisMode)
    assert isinstance(error, NotImplementedError)


# The forms


def dumped(kind: str, folder: Path, function: Callable[..., Any] = softmax_of_product) -> dict[str, str]:
    """The two texts of a graph, with the name of the graph; control edges and two sub-graphs are in it."""
    backend = Seen(config(folder, kind))
    with torch.no_grad():
        torch.compile(function, backend=backend)(torch.randn(4, 4), torch.randn(4, 4))
    name = backend.calls[0].graph
    texts = {stage: next(folder.glob(f"dynamo_{stage}_{name}_*")).read_text() for stage in STAGES}
    return texts | {"name": name}


def optimized(folder: Path, function: Callable[..., Any] = softmax_of_product) -> Graph:
    """The graph after its passes, by way of Python text."""
    return from_python(dumped("py", folder, function)["optimized"])


def test_txt_is_the_message(tmp_path: Path) -> None:
    texts, expected = dumped("txt", tmp_path), optimized(tmp_path)
    for stage in STAGES:
        graph = from_graph_def(text_format.Parse(texts[stage], schema.message("GraphDef")))
        assert graph.name == texts["name"]
        assert [op.type for op in graph.ops if op.type != "Const"] == [
            op.type for op in expected.ops if op.type != "Const"
        ]
    engine = text_format.Parse(texts["optimized"], schema.message("GraphDef"))
    assert {desc.layout for op in engine.op for desc in op.output_desc} == {"ND"}
    assert all("_input_name_key" in op.attr for op in engine.op)  # as an engine receives it
    assert {"_input_placements", "_output_dtypes"} <= set(engine.attr)


def test_txt_holds_sub_graphs(tmp_path: Path) -> None:
    text = dumped("txt", tmp_path, branches)["optimized"]
    model = text_format.Parse(text, schema.message("ModelDef"))
    named = {name for op in model.graph[0].op for name in op.subgraph_name}
    assert named == {graph.name for graph in model.graph[1:]}
    assert len(named) == 2


def branches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x, y: x @ y, lambda x, y: x - y, (x, y)) * 2


def tensorflow_graph() -> Any:
    """What viewers read: a GraphDef of TensorFlow, as far as a node list uses it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="viewer.proto", package="viewer", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str, bool], into: Any = None) -> Any:
        made = (file.message_type if into is None else into.nested_type).add(name=name)
        for field, number, kind, type_name, repeated in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            made.field.add(name=field, number=number, type=kind, type_name=type_name or None, label=label)
        return made

    message("AttrValue", ("s", 2, kinds.TYPE_BYTES, "", False), ("i", 3, kinds.TYPE_INT64, "", False))
    node = message(
        "NodeDef",
        ("name", 1, kinds.TYPE_STRING, "", False),
        ("op", 2, kinds.TYPE_STRING, "", False),
        ("input", 3, kinds.TYPE_STRING, "", True),
        ("device", 4, kinds.TYPE_STRING, "", False),
        ("attr", 5, kinds.TYPE_MESSAGE, ".viewer.NodeDef.AttrEntry", True),
    )
    entry = message(
        "AttrEntry",
        ("key", 1, kinds.TYPE_STRING, "", False),
        ("value", 2, kinds.TYPE_MESSAGE, ".viewer.AttrValue", False),
        into=node,
    )
    entry.options.map_entry = True
    message("GraphDef", ("node", 1, kinds.TYPE_MESSAGE, ".viewer.NodeDef", True))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("viewer.GraphDef"))()


@pytest.mark.parametrize("function", [softmax_of_product, branches])
def test_pbtxt_is_read_by_viewers(tmp_path: Path, function: Callable[..., Any]) -> None:
    expected = optimized(tmp_path, function)
    texts = dumped("pbtxt", tmp_path, function)
    viewed = text_format.Parse(texts["optimized"], tensorflow_graph())
    names = [node.name for node in viewed.node]
    parts = [("", expected), *((f"{name}/", part) for name, part in expected.subgraphs.items())]
    ops = {op.type for _, part in parts for op in part.ops}
    assert {node.op for node in viewed.node} == ops
    assert len(names) == len(set(names))
    for node in viewed.node:
        for edge in filter(None, node.input):
            assert edge.removeprefix("^").rpartition(":")[0 if ":" in edge else 2] in names
    last = [node for node in viewed.node if node.op == "NetOutput"]
    assert all("[i]input0" in node.attr for node in last)


def test_pbtxt_marks_control_edges() -> None:
    graph = Graph("controlled")
    with graph:
        x = torchair.ge.Data(index=0, node_name="x")
        y = torchair.ge.Relu(x)
        torchair.ge.NetOutput([torchair.ge.Abs(x, dependencies=[y])])
    viewed = text_format.Parse(torchair.ge.files.text.to_pbtxt(graph), tensorflow_graph())
    assert {node.name: list(node.input) for node in viewed.node}["Abs"] == ["^Relu", "x:0"]


def test_python_text_is_the_graph(tmp_path: Path) -> None:
    text = dumped("py", tmp_path)["optimized"]
    assert text.startswith("# -*- coding: utf-8 -*-\nfrom torch import tensor\nfrom torchair import ge\n")
    assert "## FX Code: mm: float32[4, 4]cpu = aten.mm.default(" in text
    path = next(tmp_path.glob("dynamo_optimized_*.py"))
    executed = runpy.run_path(str(path))["graph"]
    again = runpy.run_path(str(path))["graph"]  # a second time in one process: a graph of its own
    assert executed is not again
    read = from_python(text)
    for graph in (executed, again):
        graph.attrs.clear()  # who reads takes the facts of the run out of the attributes
        assert same_graph(graph, read, descriptors=False) is None


# Python files run


def mutates(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> Any:
    cache[at] += x
    return cache.sum(), cache[1:], cache.t()[0]


def views(x: torch.Tensor) -> Any:
    return x.t(), x[1:].reshape(-1), x.transpose(0, 1).contiguous(), x.expand(2, *x.shape)


def random(x: torch.Tensor) -> Any:
    return torch.rand_like(x) + nn.functional.dropout(x, 0.5, True), torch.randint(0, 9, (3,))


def kinds(x: torch.Tensor) -> Any:
    y = x.bfloat16()
    return y @ y.t(), x.half(), x > 0, (x * 10).to(torch.int8), torch.fft.rfft(x), float("-inf") * x.abs()


def sizes(x: torch.Tensor) -> Any:
    return x.new_ones(x.shape[0] * 2, x.shape[1]), torch.cat([x, x]).view(x.shape[1], -1), x.shape[0] + 1


def depends_on_data(x: torch.Tensor) -> Any:
    return x.nonzero(), x[x > 0].sum() * x.sum().item()


def large_constant(x: torch.Tensor) -> Any:
    return x.sum() * torch.tensor(LARGE, dtype=torch.float32), torch.tensor([1.5, float("nan")])


PROGRAMS: dict[Callable[..., Any], Callable[[], tuple[Any, ...]]] = {
    mutates: lambda: (torch.zeros(5, 3), torch.tensor([0, 2]), torch.randn(2, 3)),
    views: lambda: (torch.randn(4, 6),),
    random: lambda: (torch.randn(4, 6),),
    kinds: lambda: (torch.randn(4, 6),),
    sizes: lambda: (torch.randn(4, 6),),
    depends_on_data: lambda: (torch.randn(4, 6),),
    large_constant: lambda: (torch.randn(4, 6),),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [slow(f) if f is large_constant else f for f in PROGRAMS])
def test_a_script_computes_what_the_graph_does(
    tmp_path: Path, function: Callable[..., Any], dynamic: bool, mode: str
) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        check(tmp_path, seen(function, tmp_path, *PROGRAMS[function](), mode=mode, dynamic=dynamic))


@pytest.mark.full
@pytest.mark.parametrize("mode", [MODES[0], slow(MODES[1])])
def test_large_constants_lie_beside_the_script(tmp_path: Path, mode: str) -> None:
    (call,) = seen(large_constant, tmp_path, torch.ones(2), mode=mode)
    for stage in STAGES:
        path = script(tmp_path, stage, call.graph)
        beside = path.with_suffix(".pt")
        assert beside.stat().st_mode & 0o777 == 0o640
        assert len(path.read_text()) < 10_000
        (value,) = constants_of(str(path)).values()
        assert value.tolist() == LARGE
        if mode == "max-autotune":
            (held,) = [op for op in from_python(path.read_text(), constants=constants_of(str(path))).ops
                       if op.type == "Const" and op.attrs["value"].value.numel() == len(LARGE)]  # fmt: skip
            assert held.attrs["value"].value.tolist() == LARGE


@pytest.mark.parametrize("mode", MODES)
def test_graph_dump_writes_forward_and_backward(tmp_path: Path, mode: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    backend = Seen(config(tmp_path, "py", mode))
    torch.compile(model.train(), backend=backend, dynamic=False)(torch.randn(2, 3, 8, 8)).sum().backward()
    assert len(backend.calls) == 2
    check(tmp_path, backend.calls)


@pytest.mark.parametrize("mode", MODES)
@STATIC_FIRST
def test_graph_dump_of_llama_computes_the_graph(tmp_path: Path, dynamic: bool, mode: str) -> None:
    row = next(row for row in ROWS if row.name == "llama")
    backend = Seen(config(tmp_path, "py", mode))
    with torch.no_grad(), torch._dynamo.config.patch(row.dynamo):
        torch.compile(row.model(), backend=backend, dynamic=dynamic)(**row.feed(row.shapes[0]))
    check(tmp_path, backend.calls)


def test_sub_graphs_run(tmp_path: Path) -> None:
    check(tmp_path, seen(branches, tmp_path, torch.randn(3, 3), torch.randn(3, 3)))


@pytest.mark.full
def test_a_script_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    (call,) = seen(large_constant, tmp_path, torch.ones(2))
    path = script(tmp_path, "optimized", call.graph)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1.5000,    nan" in done.stdout


def test_graph_dump_without_text_form_warns(tmp_path: Path) -> None:
    with pytest.warns(DegradedWarning, match="cannot run on its own"):
        (call,) = seen(branches, tmp_path, torch.randn(3, 3), torch.randn(3, 3), mode="npugraph_ex")
    assert "torch.ops.higher_order.cond" in script(tmp_path, "original", call.graph).read_text()


def test_graph_dump_without_ir_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no conversion today")

    monkeypatch.setattr("torchair.backend.pipeline.ir.convert", fail)
    with pytest.warns(DegradedWarning) as said:
        seen(softmax_of_product, tmp_path, torch.ones(2, 2), torch.ones(2, 2))
    texts = [str(one.message) for one in said]
    assert any("debug.graph_dump writes no file" in text for text in texts), texts


def test_get_compiler_dumps_too(tmp_path: Path) -> None:
    x, weight = torch.randn(3, 4), torch.randn(4, 4)
    gm = make_fx(lambda x, weight: [x @ weight])(x, weight)
    compiled = torchair.get_compiler(config(tmp_path, "py"))(gm, [x, weight])
    (path,) = tmp_path.glob("dynamo_optimized_*.py")
    torch.testing.assert_close(runpy.run_path(str(path))["kernel"](x, weight), compiled(x, weight))
