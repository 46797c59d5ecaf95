"""Modules of typed builders: what their functions look like, what they add to graphs, what an import
declares.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings

from tests.ge.prototypes import prototypes
from torchair import ge
from torchair.core.errors import BadAttribute, BadGraph, BadInput
from torchair.ge.files.script import from_python
from torchair.ge.files.text import to_python, to_txt
from torchair.ge.files.verify import verify
from torchair.ge.graph import Graph
from torchair.ge.header_module_writer import module_text, why_no_builder
from torchair.ge.header_parser import read_reg_op
from torchair.ge.proto.equality import same_graph
from torchair.ge.proto.read import from_model
from torchair.ge.proto.write import to_bytes
from torchair.ge.prototype import Prototype, catalogue

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "codegen" / "custom_op"
HEADER = r"""
REG_OP(ModuleMix)
    .INPUT(x, TensorType({DT_FLOAT, DT_INT64}))
    .OPTIONAL_INPUT(bias, TensorType({DT_FLOAT}))
    .DYNAMIC_INPUT(rest, TensorType::ALL())
    .INPUT(from, TensorType::ALL())
    .OPTIONAL_INPUT(mask, TensorType::ALL())
    .OPTIONAL_INPUT(node_name, TensorType::ALL())
    .OUTPUT(y, TensorType::ALL())
    .DYNAMIC_OUTPUT(parts, TensorType::ALL())
    .REQUIRED_ATTR(k, Int)
    .ATTR(lambda, Float, 0.5)
    .ATTR(mask, ListInt, {1, 2})
    .ATTR(mode, String, "say \"hi\"\\")
    .ATTR(to, Type, DT_BF16)
    .ATTR(rows, ListListInt, {{1000000000000, 2000000000000, 3000000000000},
        {4000000000000, 5000000000000, 6000000000000}})
    .ATTR(unset, Int)
    .OP_END_FACTORY_REG(ModuleMix)

REG_OP(ModuleNothing)
    .OP_END_FACTORY_REG(ModuleNothing)

REG_OP(class)
    .INPUT(ge, TensorType::ALL())
    .OUTPUT(y, TensorType::ALL())
    .OP_END_FACTORY_REG(class)

REG_OP(Tensor)
    .DYNAMIC_OUTPUT(y, TensorType::ALL())
    .OP_END_FACTORY_REG(Tensor)

REG_OP(ModuleLoop)
    .INPUT(x, TensorType::ALL())
    .GRAPH(body)
    .OP_END_FACTORY_REG(ModuleLoop)
"""


def protos(text: str) -> list[Prototype]:
    return [each.proto for each in read_reg_op(text)]


def load(text: str, folder: Path, name: str = "made") -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(module_text(protos(HEADER), ["ops.h"]), tmp_path_factory.mktemp("ops"))


@pytest.fixture
def graph() -> Any:
    graph = Graph("graph_1")
    with graph:
        yield graph


def test_written_builders_have_typed_signatures(made: Any) -> None:
    rest = "dependencies: 'list[Tensor]' = [], node_name: 'str | None' = None)"
    assert str(inspect.signature(made.ModuleMix)) == (
        "(x: 'Tensor', bias: 'Tensor | None', rest: 'list[Tensor]', "
        "from_changed_as_is_python_key: 'Tensor', mask: 'Tensor | None' = None, "
        "node_name_changed_as_duplicate_with_input: 'Tensor | None' = None, *, size_of_parts: 'int', "
        "k: 'int', lambda_changed_as_is_python_key: 'float' = 0.5, "
        "mask_changed_as_duplicate_with_input: 'list[int]' = [1, 2], mode: 'str' = 'say \"hi\"\\\\', "
        "to: 'int' = 27, rows: 'list[list[int]]' = [[1000000000000, 2000000000000, 3000000000000], "
        "[4000000000000, 5000000000000, 6000000000000]], unset: 'int | None' = None, "
        f"{rest} -> 'tuple[Tensor, list[Tensor]]'"
    )
    assert str(inspect.signature(made.ModuleNothing)) == f"(*, {rest} -> 'None'"
    tensor = made.Tensor_changed_as_duplicate_with_input
    assert str(inspect.signature(tensor)) == f"(*, size_of_y: 'int', {rest} -> 'list[Tensor]'"
    assert not hasattr(made, "ModuleLoop")


def test_docstrings_have_the_text_of_the_header(made: Any) -> None:
    text = inspect.getdoc(made.ModuleMix)
    assert text is not None
    assert protos(text) == protos(HEADER)[:1]


def test_what_a_builder_adds(made: Any, graph: Graph) -> None:
    x, other = ge.Data(index=0, dtype=0, shape=[2]), ge.Data(index=1, dtype=0, shape=[2])
    y, parts = made.ModuleMix(
        x, None, [x, other], other, x, size_of_parts=2, k=3, lambda_changed_as_is_python_key=2,
        dependencies=[other], node_name="mine",
    )  # fmt: skip
    op = graph.by_name["mine"]
    assert op.type == "ModuleMix"
    assert [(slot.name, slot.tensor) for slot in op.slots] == [
        ("x", x), ("bias", None), ("rest0", x), ("rest1", other), ("from", other), ("mask", x),
        ("node_name", None),
    ]  # fmt: skip
    assert [tensor.desc.name for tensor in op.outputs] == ["y", "parts0", "parts1"]
    assert [y, *parts] == op.outputs
    assert op.after == [other.op]
    rows = [[1000000000000, 2000000000000, 3000000000000], [4000000000000, 5000000000000, 6000000000000]]
    assert op.attrs == {
        "k": ge.attr.Int(3), "lambda": ge.attr.Float(2.0), "mask": ge.attr.ListInt([1, 2]),
        "mode": ge.attr.Str('say "hi"\\'), "to": ge.attr.DataType(27), "rows": ge.attr.ListListInt(rows),
    }  # fmt: skip
    made.ModuleNothing()
    assert graph.ops[-1].type == "ModuleNothing"
    assert made.class_changed_as_is_python_key(y).op.type == "class"
    assert len(made.Tensor_changed_as_duplicate_with_input(size_of_y=3)) == 3


@pytest.mark.parametrize(
    ("arguments", "named", "error"),
    [
        ((), {}, TypeError),
        ((None, None, [], "x"), {"size_of_parts": 1, "k": 1}, BadInput),
        (("x", None, "x", "x"), {"size_of_parts": 1, "k": 1}, BadInput),
        (("x", None, [], "x"), {"size_of_parts": 1, "k": None}, BadAttribute),
        (("x", None, [], "x"), {"size_of_parts": 1, "k": 1.5}, BadAttribute),
        (("x", None, [], "x"), {"k": 1}, TypeError),
        (("x", None, [], "x"), {"size_of_parts": None, "k": 1}, BadInput),
    ],
)
@pytest.mark.usefixtures("graph")
def test_calls_that_are_refused(
    made: Any, arguments: Sequence[Any], named: dict[str, Any], error: type[Exception]
) -> None:
    x = ge.Data(index=0, dtype=0, shape=[2])
    with pytest.raises(error):
        made.ModuleMix(*(x if each == "x" else each for each in arguments), **named)


def test_everything_else_knows_the_ops(made: Any, graph: Graph) -> None:
    x = ge.Data(index=0, dtype=0, shape=[2])
    y, parts = made.ModuleMix(x, None, [x], x, size_of_parts=2, k=3)
    by_name = ge.custom_op("class", y)
    ge.NetOutput([y, *parts, by_name])
    verify(graph)
    assert 'type: "ModuleMix"' in to_txt(graph)
    assert same_graph(from_model(to_bytes(graph)), graph) is None
    assert same_graph(from_python(to_python(graph)), graph, descriptors=False) is None
    del y.op.attrs["k"]
    with pytest.raises(BadGraph, match="needs the attribute 'k'"):
        verify(graph)


def test_a_module_may_be_imported_again_as_it_was(made: Any, tmp_path: Path) -> None:
    text = Path(made.__file__).read_text(encoding="utf-8")
    again = load(text, tmp_path)
    assert again.ModuleMix is not made.ModuleMix
    changed = text.replace(".REQUIRED_ATTR(k, Int)", ".REQUIRED_ATTR(k, Float)")
    with pytest.raises(BadGraph, match="'ModuleMix' already") as caught:
        load(changed, tmp_path)
    assert caught.value.details["at"].startswith("made:")
    assert "next process" in caught.value.details["next"]


def test_ops_without_a_builder() -> None:
    (loop,) = [proto for proto in protos(HEADER) if why_no_builder(proto)]
    assert loop.name == "ModuleLoop"
    assert why_no_builder(catalogue()["Data"])
    text = module_text([loop], ["ops.h"])
    assert "def " not in text
    assert "REG_OP(ModuleLoop)" in text


def test_modules_import_public_names_only() -> None:
    tree = ast.parse(module_text(protos(HEADER), ["ops.h"]))
    found = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert found == {"__future__.annotations", "torchair.ge", "torchair.ge.Tensor"}
    called = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ge"
    }
    assert called == {"builder", "register_reg_op"}
    assert {*called, "Tensor"} <= set(ge.__all__)


@given(prototypes())
@settings(max_examples=60, deadline=None)
def test_any_prototype_makes_a_module(proto: Prototype) -> None:
    tree = ast.parse(module_text([proto], ['odd "name"\\.h', '"""']))
    texts = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    ]
    assert [protos(text) for text in texts] == [[proto]]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) == (not why_no_builder(proto))
    for function in functions:
        defaults = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        values = [None if node is None else repr(ast.literal_eval(node)) for _, node in defaults]
        sizes = sum(param.kind == "dynamic" for param in proto.outputs)
        wanted = [None if row.required else repr(row.default) for row in proto.attrs]
        assert values == [None] * sizes + wanted + ["[]", "None"]


@pytest.mark.parametrize("width", [88, 110])
def test_modules_are_formatted(width: int, tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    every = [*protos(HEADER), *(catalogue()[name] for name in list(catalogue())[:1700:9])]
    (tmp_path / "ops.py").write_text(module_text(every, ["ops.h", "more.h"]), encoding="utf-8")
    options = ["--isolated", "--line-length", str(width), "ops.py"]
    for command in (["format", "--diff"], ["check", "--select", "E,F,W,I,B,UP,RUF,C4"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *options], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_the_committed_module_is_that_of_the_committed_header() -> None:
    header = FOLDER / "custom_reg_op.h"
    text = module_text(protos(header.read_text(encoding="utf-8")), [header.name])
    kept = FOLDER / "auto_generated_ge_raw_custom_ops.py"
    assert kept.read_text(encoding="utf-8") == text, "run make generate_ge_raw_custom_ops"
