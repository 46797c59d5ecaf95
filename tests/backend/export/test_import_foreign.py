"""Graphs of other producers, written by hand with the schema of `wire.py`."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.backend.export import wire
from tests.backend.export.wire import Build
from torchair.core.errors import AirError, BadCall, BadGraph, BadPath, UnsupportedOp

F = torch.nn.functional
X = torch.randn(2, 3)


def load(tmp_path: Path, *graphs: Build) -> Any:
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    return torchair.load_air(wire.write(tmp_path / "other.air", *graphs), config=config)


def ints(*numbers: int, code: str = "q") -> bytes:
    return struct.pack(f"<{len(numbers)}{code}", *numbers)


def floats(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def test_import_accepts_ops_and_inputs_in_any_order(tmp_path: Path) -> None:
    """Ops before what they read, inputs in no order, control edges first and last."""
    main = Build()
    main.output("sum:0")
    main.op("Add", "sum", {"^": "neg:-1", "x1": "double:0", "x2": "neg:0"})
    main.op("Neg", "neg", {"x": "b:0", "^": "double:-1"})
    main.data("b", 1, [2, 3])
    main.op("Add", "double", {"x1": "a:0", "x2": "a:0"})
    main.data("a", 0, [2, 3])
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    loaded = load(tmp_path, main)
    torch.testing.assert_close(loaded(a, b), (2 * a - b,))
    torch.testing.assert_close(loaded(b=b, a=a), (2 * a - b,))


@pytest.mark.parametrize("style", ["unfed", "left out"])
def test_optional_inputs_and_defaults(tmp_path: Path, style: str) -> None:
    """Attributes that are left out have the catalogue's defaults, inputs are found by name."""
    w, bias = torch.randn(4, 3), torch.randn(4)
    main = Build()
    main.data("x", 0, [2, 3])
    main.const("w", [4, 3], floats(w))
    main.const("b", [4], floats(bias), type="Constant")
    given = {"x1": "x:0", "x2": "w:0", "bias": "b:0"}
    op = main.op("MatMulV2", "mm", given | ({"offset_w": ""} if style == "unfed" else {}), transpose_x2=True)
    if style == "unfed":
        op.input_desc[3].attr["_is_unfed_optional"].i = 1
    main.op("Relu", "relu", {"x": "mm:0"})
    main.output("relu:0")
    torch.testing.assert_close(load(tmp_path, main)(X), (F.relu(F.linear(X, w, bias)),))


@pytest.mark.parametrize("type", ["Gather", "GatherV2"])
def test_other_versions_of_ops(tmp_path: Path, type: str) -> None:
    main = Build()
    main.data("x", 0, [2, 3])
    main.const("rows", [2], ints(1, 0), "INT64")
    main.const("axis", [1], ints(0), "INT64")
    more = {"axis": "axis:0"} if type == "GatherV2" else {}
    main.op(type, "rows_of_x", {"x": "x:0", "indices": "rows:0"} | more)
    main.output("rows_of_x:0")
    torch.testing.assert_close(load(tmp_path, main)(X), (X[[1, 0]],))


@pytest.mark.parametrize("val_type", [0, 2])
def test_tags_of_lists(tmp_path: Path, val_type: int) -> None:
    main = Build()
    main.data("x", 0, [1, 2, 3])
    op = main.op("Squeeze", "flat", {"x": "x:0"}, axis=[0])
    op.attr["axis"].list.val_type = val_type
    for key, tag in (("_input_name_key", 1), ("_output_name_key", 0)):
        op.attr[key].list.s.append(b"x")
        op.attr[key].list.val_type = tag
    main.output("flat:0")
    torch.testing.assert_close(load(tmp_path, main)(X[None]), (X,))
    op.attr["axis"].list.val_type = 3
    with pytest.raises(BadGraph, match="attribute 'axis' is no ListInt"):
        load(tmp_path, main)


def test_import_reads_internal_formats(tmp_path: Path) -> None:
    """Sizes in attributes where the descriptor has none; formats as numbers everywhere."""
    main = Build()
    data = main.data("x", 0, [])
    for desc in (data.input_desc[0], data.output_desc[0]):
        desc.layout = "FRACTAL_NZ"
        wire.put(desc.attr["origin_shape"], [2, 3])
        wire.put(desc.attr["format_for_int"], 29)
        wire.put(desc.attr["origin_format_for_int"], 2)
        wire.put(desc.attr["origin_shape_initialized"], True)
        wire.put(desc.attr["origin_format_is_set"], True)
    op = main.op("Neg", "neg", {"x": "x:0"})
    wire.put(op.output_desc[0].attr["format_for_int"], 2)
    main.output("neg:0")
    torch.testing.assert_close(load(tmp_path, main)(X), (-X,))


@pytest.mark.parametrize("place", ["beside", "absolute", "moved"])
def test_weights_in_files(tmp_path: Path, place: str) -> None:
    """The descriptor says FLOAT, the attribute what it is."""
    weight = torch.randn(2, 3, dtype=torch.bfloat16)
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / ("elsewhere" if place == "absolute" else "") / "weight"
    path.write_bytes(weight.view(torch.int16).numpy().tobytes())
    said = {"beside": "weight", "absolute": str(path), "moved": "/nowhere/export/weight"}[place]
    load(tmp_path, _with_weight(said))
    torch.testing.assert_close(load(tmp_path, _with_weight(said))(X.bfloat16()), (X.bfloat16() + weight,))


def _with_weight(path: str, shape: tuple[int, ...] = (2, 3), dtype: int = wire.RUNTIME["BF16"]) -> Build:
    main = Build()
    main.data("x", 0, [2, 3], "BF16")

    def kind(attr: Any) -> None:
        attr.dt = dtype

    op = main.op("FileConstant", "w", shape=list(shape), dtype=kind, file_path=path, file_id="")
    op.output_desc[0].dtype = wire.WIRE["FLOAT"]
    main.op("Add", "sum", {"x1": "x:0", "x2": "w:0"})
    main.output("sum:0")
    return main


def test_names_of_files_lead_nowhere_else(tmp_path: Path) -> None:
    """What lies beside the folder is not found by climbing out of it."""
    folder = tmp_path / "graph"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(12))
    for said in ("../secret", "x/../../secret", "/secret", "", "a\0b", "a" * 5000):
        with pytest.raises(BadPath, match="there is no such file"):
            load(folder, _with_weight(said))


@pytest.mark.parametrize("name", ["../state", "/tmp/state", "a/../../state", ""])
def test_states_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    main = Build()
    main.data("x", 0, [2])
    main.output("x:0")
    call = '{"parameters": [], "inputs": [{"state": "%s", "sizes": [2], "dtype": 0}], "result": {"value": 1}}'
    wire.put(main.graph.attr["_torchair_call"], call % name)
    (tmp_path / "state").write_bytes(bytes(8))
    (tmp_path / "graph").mkdir()
    loaded = load(tmp_path, main) if not name else None
    if loaded is not None:
        with pytest.raises(AirError, match="must be a tensor"):
            loaded()
        return
    with pytest.raises(BadPath, match="is not below that folder"):
        load(tmp_path / "graph", main)


# Sub-graphs


def branch(name: str, type: str, *, parents: tuple[int, ...] = (1, 2), **attrs: Any) -> Build:
    """`type` of two inputs that the caller passes."""
    part = Build(name)
    for index, parent in enumerate(parents):
        part.data(f"{name}{index}", index, None, _parent_node_index=parent)
    part.op(type, f"{name}op", {"x1": f"{name}0:0", "x2": f"{name}1:0"}, **attrs)
    output = part.output(f"{name}op:0")
    wire.put(output.input_desc[0].attr["_parent_node_index"], 0)
    return part


def caller(type: str, first: dict[str, str], outputs: tuple[str, ...], *parts: str) -> Build:
    main = Build()
    main.data("n", 0, [], "BOOL" if type == "If" else "INT32", _host_tensor=False)
    main.data("a", 1, [2, 3])
    main.data("b", 2, [2, 3])
    op = main.op(type, "call", first, outputs)
    op.subgraph_name.extend(parts)
    main.op("Neg", "neg", {"x": "call:0"})
    main.output("neg:0")
    for data in main.graph.op[:3]:
        data.output_desc[0].device_type = "NPU"
    return main


def test_import_runs_if(tmp_path: Path) -> None:
    main = caller("If", {"cond": "n:0", "input0": "a:0", "input1": "b:0"}, ("output0",), "then", "else")
    # One branch takes its inputs the other way round.
    loaded = load(tmp_path, main, branch("then", "Sub"), branch("else", "Sub", parents=(2, 1)))
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    for condition in (True, False):
        want = -(a - b) if condition else -(b - a)
        torch.testing.assert_close(loaded(torch.tensor(condition), a, b), (want,))


def test_a_branch_need_not_read_everything(tmp_path: Path) -> None:
    main = caller("If", {"cond": "n:0", "input0": "a:0", "input1": "b:0"}, ("output0",), "then", "else")
    part = Build("else")
    part.data("only", 0, None, _parent_node_index=2)
    part.op("Neg", "neg", {"x": "only:0"})
    part.output("neg:0")
    loaded = load(tmp_path, main, branch("then", "Add"), part)
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(loaded(torch.tensor(False), a, b), (b,))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_import_runs_case(tmp_path: Path, count: int) -> None:
    types = ("Add", "Sub", "Mul", "Maximum")[:count]
    main = caller("Case", {"branch_index": "n:0", "input0": "a:0", "input1": "b:0"}, ("output0",), *types)
    loaded = load(tmp_path, main, *(branch(type, type) for type in types))
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    made = [a + b, a - b, a * b, torch.maximum(a, b)][:count]
    for number in (*range(count), count, -1):
        want = -(made[number] if 0 <= number < count else made[-1])
        torch.testing.assert_close(loaded(torch.tensor(number, dtype=torch.int32), a, b), (want,))


@pytest.mark.parametrize("type", ["PartitionedCall", "StatefulPartitionedCall"])
def test_calls_are_inlined(tmp_path: Path, type: str) -> None:
    main = caller(type, {"args0": "a:0", "args1": "b:0"}, ("output0",), "part")
    loaded = load(tmp_path, main, branch("part", "Sub", parents=(1, 0)))
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(loaded(torch.tensor(0, dtype=torch.int32), a, b), (a - b,))
    assert not {op.type for op in loaded.graph.ops} & {type}


def test_import_runs_while(tmp_path: Path) -> None:
    """`for i in range(n): x = x + x`, with a counter that is a constant at first."""
    main = Build()
    main.data("n", 0, [], "INT32")
    main.data("x", 1, [2, 3])
    main.const("zero", [], ints(0, code="i"), "INT32")
    loop = main.op(
        "While",
        "loop",
        {"input0": "zero:0", "input1": "n:0", "input2": "x:0"},
        ("output0", "output1", "output2"),
    )
    loop.subgraph_name.extend(["cond", "body"])
    main.output("loop:2")
    main.graph.op[0].output_desc[0].device_type = "NPU"
    parts = [Build("cond"), Build("body")]
    for part in parts:
        for index in range(3):
            part.data(f"d{index}", index, None, _parent_node_index=index)
    parts[0].op("Less", "less", {"x1": "d0:0", "x2": "d1:0"})
    parts[0].output("less:0")
    parts[1].const("one", [], ints(1, code="i"), "INT32")
    parts[1].op("Add", "next", {"x1": "d0:0", "x2": "one:0"})
    parts[1].op("Add", "twice", {"x1": "d2:0", "x2": "d2:0"})
    parts[1].output("next:0", "d1:0", "twice:0")
    loaded = load(tmp_path, main, *parts)
    for count in (0, 3):
        torch.testing.assert_close(loaded(torch.tensor(count, dtype=torch.int32), X), (X * 2**count,))


# What is refused


def test_import_error_lists_all_missing_ops(tmp_path: Path) -> None:
    main = Build()
    main.data("x", 0, [2, 3])
    for n in range(5):
        main.op("Softmaxx", f"soft{n}", {"x": "x:0"})
    main.op("TorchOp", "torch", {"x0": "x:0"}, target="aten.from_file.default", args="[]", results="1")
    main.op("Conv9D", "conv", {"x": "x:0"})
    main.output("soft0:0", "conv:0")
    with pytest.raises(UnsupportedOp) as caught:
        load(tmp_path, main)
    text = str(caught.value)
    assert "3 kinds of ops that have no kernel here: Softmaxx, TorchOp, Conv9D" in text
    assert "Softmaxx: soft0, soft1, soft2 and 2 more" in text
    assert "Softmaxx: SoftmaxV2" in text
    assert "Conv9D: Conv3D, Conv2D" in text
    # A kernel alone is refused: it is of a prototype.
    assert "declare Softmaxx with torchair.ge.register_prototype" in text
    assert text.index("register_prototype") < text.index("torchair.ge.register_kernel('Softmaxx', fn)")


def test_sub_graphs_without_end(tmp_path: Path) -> None:
    main = caller("PartitionedCall", {"args0": "a:0", "args1": "b:0"}, ("output0",), "p0")
    around = branch("p0", "Add", parents=(0, 1))
    inner = around.op("PartitionedCall", "again", {"args0": "p00:0", "args1": "p01:0"}, ("output0",))
    inner.subgraph_name.append("p0")
    with pytest.raises(BadGraph, match="comes to itself: 'p0'"):
        load(tmp_path, main, around)
    inner.subgraph_name[0] = "gone"
    with pytest.raises(BadGraph, match="not there: 'gone'"):
        load(tmp_path, main, around)


def test_sub_graphs_that_double(tmp_path: Path) -> None:
    """Forty graphs that each call the next twice are a million million ops."""
    parts = []
    for n in range(40):
        part = Build(f"p{n}")
        part.data("x", 0, None)
        for place, edge in enumerate(("x:0", "call0:0")):
            call = part.op("PartitionedCall", f"call{place}", {"args0": edge}, ("output0",))
            call.subgraph_name.append(f"p{n + 1}")
        part.output("call1:0")
        parts.append(part)
    last = Build("p40")
    last.data("x", 0, None)
    last.op("Neg", "neg", {"x": "x:0"})
    last.output("neg:0")
    main = Build()
    main.data("x", 0, [2])
    main.op("PartitionedCall", "call", {"args0": "x:0"}, ("output0",)).subgraph_name.append("p0")
    main.output("call:0")
    with pytest.raises(BadGraph, match="more than"):
        load(tmp_path, main, *parts, last)


HUGE = 2**60


def _fill(main: Build) -> None:
    main.const("dims", [2], ints(2**30, 2**30), "INT64")
    main.const("one", [], floats(torch.tensor(1.0)))
    main.op("Fill", "huge", {"dims": "dims:0", "value": "one:0"})


def _range(main: Build) -> None:
    for name, number in (("start", 0), ("limit", HUGE), ("delta", 1)):
        main.const(name, [], ints(number), "INT64")
    main.op("Range", "huge", {"start": "start:0", "limit": "limit:0", "delta": "delta:0"})


def _eye(main: Build) -> None:
    main.op("Eye", "huge", num_rows=2**30, num_columns=2**30)


def _broadcast(main: Build) -> None:
    main.const("dims", [2], ints(HUGE, 3), "INT64")
    main.const("row", [3], bytes(12))
    main.op("BroadcastTo", "huge", {"x": "row:0", "shape": "dims:0"})


def _tile(main: Build) -> None:
    main.const("times", [1], ints(HUGE), "INT64")
    main.const("row", [3], bytes(12))
    main.op("Tile", "huge", {"x": "row:0", "multiples": "times:0"})


def _const(main: Build) -> None:
    main.const("huge", [2**32, 2**32], b"")


def _file(main: Build) -> None:
    main.graph.op.extend([_with_weight("weight", (2**30, 2**30)).graph.op[1]])
    main.graph.op[-1].name = "huge"


@pytest.mark.parametrize("make", [_fill, _range, _eye, _broadcast, _tile, _const, _file])
def test_huge_sizes_are_refused_before_memory_is_asked_for(tmp_path: Path, make: Any) -> None:
    (tmp_path / "weight").write_bytes(bytes(12))
    main = Build()
    main.data("x", 0, [2, 3])
    make(main)
    main.op("Neg", "neg", {"x": "huge:0"})
    main.output("neg:0")
    with pytest.raises(BadGraph, match=r"bytes|overflowed"):
        load(tmp_path, main)(X)


@pytest.mark.parametrize("type", ["Pow", "LeftShift"])
def test_import_refuses_numbers_beyond_64_bits(tmp_path: Path, type: str) -> None:
    """Numbers that decide sizes are Python's, of any length."""
    main = Build()
    main.data("x", 0, [2, 3])
    main.const("three", [], ints(3), "INT64")
    main.const("many", [], ints(2**45), "INT64")
    first, second = ("x1", "x2") if type == "Pow" else ("x", "y")
    main.op(type, "huge", {first: "three:0", second: "many:0"}, ("y" if type == "Pow" else "z",))
    main.op("Neg", "neg", {"x": "huge:0"})
    main.output("neg:0")
    with pytest.raises(BadGraph, match="no number of 64 bits"):
        load(tmp_path, main)(X)


def test_huge_layouts_of_results(tmp_path: Path) -> None:
    main = Build()
    main.data("x", 0, [2, 3])
    main.op("Neg", "neg", {"x": "x:0"})
    main.output("neg:0")
    layout = {"sizes": [2, 3], "strides": [3, 1], "offset": HUGE, "dtype": "float32", "device": "cpu"}
    result = {"kind": "tensor", "tensor": "neg:0", "layout": {**layout, "storage": 0}}
    wire.put(main.graph.attr["_torchair_feeds"], json.dumps({"x": ["value", [0]]}))
    wire.put(main.graph.attr["_torchair_results"], json.dumps([result]))
    with pytest.raises(BadGraph, match="main returns a tensor of"):
        load(tmp_path, main)(X)


def test_import_refuses_inputs_of_huge_sizes(tmp_path: Path) -> None:
    main = Build()
    main.data("x", 0, [HUGE, HUGE])
    main.op("Neg", "neg", {"x": "x:0"})
    main.output("neg:0")
    with pytest.raises(AirError, match="has other sizes than the graph"):
        load(tmp_path, main)(X)


WORDS = torch.tensor([[0x1234567F], [-2]], dtype=torch.int32)
VALUES = torch.tensor([[-1, 7, 6, 5, 4, 3, 2, 1], [-2, -1, -1, -1, -1, -1, -1, -1]], dtype=torch.int8)


def small(tmp_path: Path, rows: int) -> Any:
    main = Build()
    main.data("x", 0, [rows, 8], "INT4")
    main.const("scale", [1], floats(torch.ones(1)))
    main.op("AscendAntiQuantV2", "wide", {"x": "x:0", "scale": "scale:0"}, dst_type=0)
    main.output("wide:0")
    return load(tmp_path, main)


@pytest.mark.parametrize("rows", [2, -1])
@pytest.mark.parametrize("given", [VALUES, WORDS, WORDS.view(torch.uint8)], ids=["values", "words", "bytes"])
def test_inputs_of_four_bits(tmp_path: Path, given: torch.Tensor, rows: int) -> None:
    """One value in each element, or packed as torch packs them."""
    torch.testing.assert_close(small(tmp_path, rows)(given), (VALUES.float(),))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (VALUES.float(), "argument x is INT4(.|\n)*give torch.int8 .* or torch.uint8 or torch.int32"),
        (WORDS.view(torch.int8), r"other sizes(.|\n)*\[2, 4\] instead of \[2, 8\]"),
        (VALUES.view(torch.uint8), r"other sizes(.|\n)*\[2, 16\] instead of \[2, 8\]"),
    ],
    ids=["floats", "packed in int8", "one in each byte"],
)
def test_other_inputs_of_four_bits_are_refused(tmp_path: Path, given: torch.Tensor, text: str) -> None:
    with pytest.raises(BadCall, match=text):
        small(tmp_path, 2)(given)


@pytest.mark.parametrize("form", [VALUES, WORDS], ids=["values", "words"])
def test_inputs_of_four_bits_are_written(tmp_path: Path, form: torch.Tensor) -> None:
    main = Build()
    for index, name in enumerate("xy"):
        main.data(name, index, [2, 8], "INT4")
    main.op("Assign", "write", {"ref": "x:0", "value": "y:0"}, ("ref",))
    main.op("NetOutput", "out", {"^": "write:-1"}, ())
    written = torch.zeros_like(form)
    load(tmp_path, main)(written, VALUES)
    assert torch.equal(written, form)
