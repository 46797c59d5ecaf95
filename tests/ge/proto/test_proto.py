"""The wire format: what is written, and that both ways round nothing is lost."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.ge.graphs import DTYPES, graphs
from torchair import ge
from torchair.core import dtypes
from torchair.core.errors import BadGraph, NotPossible
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv
from torchair.fxgraph.layout import ViewStep, layout_of
from torchair.ge import attr
from torchair.ge.files.text import to_python
from torchair.ge.files.verify import verify
from torchair.ge.graph import (
    AliasResult,
    ArgumentFeed,
    ConstantResult,
    Graph,
    NumberResult,
    PackFeed,
    TensorResult,
)
from torchair.ge.host import Host
from torchair.ge.proto import schema
from torchair.ge.proto.equality import same_attr, same_graph
from torchair.ge.proto.read import from_graph_def, from_model
from torchair.ge.proto.write import (
    LIMIT,
    add_graph_attributes,
    normalise,
    to_bytes,
    to_graph_def,
    to_model,
)

# torch warns about every half-precision complex tensor.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")
PROPERTY = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.fixture
def graph() -> Graph:
    """x + 1, cast behind a control edge, with an optional input left open."""
    made = Graph("graph_1")
    with made:
        x = ge.Data(index=0, dtype=0, shape=[2, -1], placement="NPU", node_name="x")
        y = ge.Add(x, 1.0)
        z = ge.MatMul(y, y, None)
        w = ge.Cast(z, dst_type=ge.DataType.DT_INT32, dependencies=[y])
        ge.NetOutput([w, z])
    return made


def op(message: Any, name: str) -> Any:
    return next(entry for entry in message.op if entry.name == name)


# The schema


def test_the_schema_has_38_messages() -> None:
    assert len(schema.MESSAGES) == 38
    for name in schema.MESSAGES:
        assert schema.message(name).DESCRIPTOR.full_name == f"ge.proto.{name}"


def test_field_numbers_of_the_messages_that_matter() -> None:
    fields = {field.name: field.number for field in schema.message("OpDef").DESCRIPTOR.fields}
    assert (fields["input"], fields["attr"], fields["input_desc"], fields["subgraph_name"]) == (5, 10, 33, 35)
    attribute = schema.message("AttrDef").DESCRIPTOR
    assert [field.name for field in attribute.oneofs_by_name["value"].fields][:4] == ["list", "s", "i", "f"]
    assert len(attribute.fields) == 14


def test_the_bytes_of_a_small_message() -> None:
    message = schema.message("OpDef")
    message.name, message.type = "a", "Add"
    message.attr["k"].i = 3
    message.output_desc.add(dtype=7)
    assert (
        message.SerializeToString()
        == b"\x0a\x01a\x12\x03Add\x52\x07\x0a\x01k\x12\x02\x18\x03\x92\x02\x02\x10\x07"
    )


def test_unknown_fields_are_kept() -> None:
    unknown = b"\xfa\x3e\x02hi"  # field 1007
    message = schema.message("TensorDescriptor")
    message.ParseFromString(unknown)
    assert message.SerializeToString() == unknown


# What is written


def test_edges_and_descriptors(graph: Graph) -> None:
    written = to_graph_def(graph)
    assert list(op(written, "Cast").input) == ["Add:-1", "MatMul:0"]
    assert list(op(written, "MatMul").input) == ["Add:0", "Add:0", ""]
    descs = op(written, "MatMul").input_desc
    assert [desc.name for desc in descs] == ["x1", "x2", "bias"]
    assert descs[2].attr["_is_unfed_optional"].i == 1
    assert descs[2].dtype == 0
    assert [desc.name for desc in op(written, "NetOutput").input_desc] == ["input0", "input1"]
    assert not op(written, "NetOutput").output_desc


def test_data_op_writes_index_and_descriptors(graph: Graph) -> None:
    written = op(to_graph_def(graph), "x")
    assert not written.input
    assert written.attr["index"].i == 0
    for desc, name in ((written.input_desc[0], "x"), (written.output_desc[0], "y")):
        assert (desc.name, desc.dtype, desc.layout, desc.device_type) == (name, 1, "ND", "NPU")
        assert list(desc.shape.dim) == [2, -1]
        assert "_is_unfed_optional" not in desc.attr


def test_data_from_what_flows_there() -> None:
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.empty(4, 3), static_shapes=False)
    made = Graph("graph_1")
    with made:
        x, n, sizes = (ge.Data(index=i, node_name=name) for i, name in enumerate(("x", "n", "sizes")))
        x.meta, n.meta, sizes.meta = fake, Host(fake.shape[0]), Host((fake.shape[0], 7))
        y = ge.Acos(x)
        y.meta = fake
        ge.NetOutput([y])
    written = to_graph_def(made)
    found = {entry.name: entry.output_desc[0] for entry in written.op if entry.output_desc}
    assert [list(found[name].shape.dim) for name in ("x", "n", "sizes")] == [[-1, -1], [], [2]]
    assert [found[name].dtype for name in ("x", "n", "sizes", "Acos")] == [1, 8, 8, 1]
    assert all(found[name].device_type == "CPU" for name in ("x", "n", "sizes"))
    assert not found["Acos"].HasField("shape"), "engines infer shapes inside the graph"
    assert list(op(written, "NetOutput").input_desc[0].shape.dim) == [-1, -1]
    text = found["x"].attr["_meta"].s.decode()
    assert text == f"Tensor(dtype=torch.float32, shape=torch.Size([{fake.shape[0]}, {fake.shape[1]}])"
    assert found["n"].attr["_meta"].s.decode() == f"<class 'torch.SymInt'>({fake.shape[0]})"


def test_const_op_writes_value() -> None:
    made = Graph("graph_1")
    with made:
        ge.NetOutput([ge.Const([[1, 2]], dtype=ge.DataType.DT_INT32), ge.Const(2.0)])
    written = to_graph_def(made).op
    value = written[0].attr["value"].t
    assert value.data == b"\x01\x00\x00\x00\x02\x00\x00\x00"
    assert (value.desc.dtype, value.desc.layout, list(value.desc.shape.dim)) == (7, "ND", [1, 2])
    assert written[0].output_desc[0] == value.desc
    assert written[0].output_desc[0].name == ""
    assert written[0].attr["_readable_value"].s == b"[[1, 2]]"
    assert list(written[1].attr["value"].t.desc.shape.dim) == []
    assert written[1].attr["value"].t.data == b"\x00\x00\x00\x40"


def test_to_model_normalizes_names_and_devices(graph: Graph) -> None:
    graph.by_name["MatMul"].attrs["input_layout_info"] = attr.Layouts([(1, "FRACTAL_NZ")])
    model = to_model(graph, normalised=True)
    assert (model.name, model.version, len(model.graph)) == ("", 0, 1)
    written = model.graph[0]
    mm = op(written, "MatMul")
    assert [desc.layout for desc in mm.input_desc] == ["ND", "FRACTAL_NZ", ""]
    assert [desc.dtype for desc in mm.input_desc] == [1, 1, 0], "unfed descriptors are left alone"
    assert (mm.output_desc[0].dtype, mm.output_desc[0].layout) == (1, "ND")
    assert list(mm.attr["_input_name_key"].list.s) == [b"x1", b"x2", b"bias"]
    assert list(mm.attr["_input_name_value"].list.i) == [0, 1, 2]
    assert list(op(written, "Const").attr["_output_name_key"].list.s) == [b""]
    assert op(written, "x").output_desc[0].device_type == "NPU"


def test_executor_type_follows_device() -> None:
    made = Graph("graph_1")
    with made:
        second = ge.Data(index=1, dtype=9, shape=[], placement="CPU", node_name="n")
        first = ge.Data(index=0, dtype=27, shape=[2], placement="NPU", node_name="x")
        ge.NetOutput([second, first])
    written = to_graph_def(made)
    add_graph_attributes(written, npu=True)
    assert list(written.attr["_input_placements"].list.i) == [1, 0]
    assert list(written.attr["_output_dtypes"].list.i) == [ge.DataType.DT_INT64, ge.DataType.DT_BF16]
    assert written.attr["_output_dtypes"].list.val_type == 0
    assert written.attr["_executor_type"].i == 1
    add_graph_attributes(written, npu=False)
    assert written.attr["_executor_type"].i == 0


def test_normalising_twice_changes_nothing(graph: Graph) -> None:
    once = to_graph_def(graph)
    normalise(once)
    twice = schema.message("GraphDef")
    twice.CopyFrom(once)
    normalise(twice)
    assert once == twice


def test_subgraphs_are_further_graphs_of_the_model() -> None:
    made = Graph("main")
    with made:
        x = ge.Data(index=0, dtype=12, shape=[], node_name="x")
        for name in ("then", "else"):
            with made.subgraph(name):
                inner = ge.Data(index=0, attrs={"_parent_node_index": attr.Int(1)})
                ge.NetOutput([inner])
        y = ge.add_op("If", {"cond": x, "input": [x]}, {}, [("output", 1)], subgraphs=["then", "else"])
        ge.NetOutput(y)
    verify(made)
    model = to_model(made)
    assert [part.name for part in model.graph] == ["main", "then", "else"]
    assert list(op(model.graph[0], "If").subgraph_name) == ["then", "else"]
    assert same_graph(made, from_model(model)) is None


def test_python_objects_cannot_be_written(graph: Graph) -> None:
    with graph:
        ge.TorchOp([], target="higher_order", args="[]", results="0", outputs=0)
    graph.ops[-1].objects["object_0"] = torch.nn.Identity()
    with pytest.raises(NotPossible, match="Identity"):
        to_model(graph)
    assert to_graph_def(graph).op, "dumps still work"


def test_an_attribute_that_does_not_fit_is_named(graph: Graph) -> None:
    graph.by_name["Cast"].attrs["dst_type"] = attr.Int(2**70)
    with pytest.raises(BadGraph, match="'dst_type' of 'Cast'"):
        to_model(graph)


def test_the_limit_of_one_file(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIMIT == 2**31 - 1
    monkeypatch.setattr("torchair.ge.proto.write.LIMIT", 10)
    with pytest.raises(NotPossible, match="files of their own"):
        to_bytes(graph)


# Reading


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.ClearField("graph"), "without a graph"),
        (lambda m: op(m.graph[0], "Cast").input.__setitem__(1, "Ad:0"), "'Ad:0'"),
        (lambda m: op(m.graph[0], "Cast").input.__setitem__(1, "Add"), "'Add'"),
        (lambda m: op(m.graph[0], "Cast").input.append("Add:0"), "2 input edges and 1"),
        (lambda m: setattr(op(m.graph[0], "Add"), "name", "Cast"), "two ops called 'Cast'"),
        (lambda m: op(m.graph[0], "Cast").input.__setitem__(1, "Add:7"), "has 1 outputs"),
        (lambda m: op(m.graph[0], "Add").input.append("Cast:-1"), "in a circle"),
        (lambda m: [m.graph.add(name="part") for _ in range(2)], "one name"),
    ],
)
def test_from_model_refuses_damaged_message(graph: Graph, change: Any, says: str) -> None:
    model = to_model(graph)
    change(model)
    with pytest.raises(BadGraph, match=says):
        from_model(model)


def test_bytes_that_are_no_model() -> None:
    with pytest.raises(BadGraph, match="no ModelDef"):
        from_model(b"\x3a\xff")


def test_ops_out_of_order_are_sorted(graph: Graph) -> None:
    model = to_model(graph)
    ops = list(model.graph[0].op)
    del model.graph[0].op[:]
    model.graph[0].op.extend(reversed(ops))
    read = from_model(model)
    verify(read)
    assert {entry.name for entry in read.ops} == {entry.name for entry in ops}


def test_names_with_colons_and_slashes() -> None:
    made = Graph("graph_1")
    with made:
        x = ge.Data(index=0, node_name="model/a:b.c")
        ge.NetOutput([x], dependencies=[x])
    assert same_graph(made, from_model(to_model(made))) is None


def test_what_vendors_add_survives(graph: Graph) -> None:
    model = to_model(graph)
    model.attr["stream"].i = 3
    model.custom_version = "7"
    written = model.graph[0]
    written.input.append("x:0")
    add = op(written, "Add")
    add.id, add.stream_id = 4, 1
    add.workspace.extend([1, 2])
    add.attr_groups.attr_group_def.add().op_attr_group.name = "g"
    add.attr["td"].td.name = "d"
    add.attr["bytes"].bt = b"\xff"
    add.attr["not text"].s = b"\xff"
    add.attr["strings"].list.s.append(b"a")
    add.attr["strings"].list.val_type = 1
    add.attr["graph"].g.name = "g"
    add.attr["nothing"].Clear()
    add.output_desc[0].attr["format_for_int"].i = 2
    add.output_desc[0].size = 64
    add.output_desc[0].dtype = 41  # newer than our table of data types
    op(written, "Const").attr["value"].t.desc.attr["more"].i = 1
    data = model.SerializeToString(deterministic=True)
    read = from_model(data)
    assert read.by_name["Add"].attrs["strings"] == attr.ListStr(["a"])
    assert to_bytes(read) == data


def test_data_without_its_own_descriptor_copies() -> None:
    """A reader follows its producer when that changes, unless the file said something of its own."""
    made = Graph("graph_1")
    with made:
        ge.NetOutput([ge.Acos(ge.Data(index=0, dtype=0, shape=[2]))])
    model = to_model(made)
    read = from_model(model)
    read.by_name["Data"].outputs[0].desc.dtype = 1
    assert op(to_graph_def(read), "Acos").input_desc[0].dtype == 2
    op(model.graph[0], "Acos").input_desc[0].layout = "NCHW"
    read = from_model(model)
    read.by_name["Data"].outputs[0].desc.dtype = 1
    assert op(to_graph_def(read), "Acos").input_desc[0].dtype == 1


def test_empty_descriptor_stays_empty(graph: Graph) -> None:
    written = to_graph_def(graph)
    desc = op(written, "Add").input_desc[0]
    desc.Clear()
    desc.name = "x1"
    assert to_graph_def(from_graph_def(written)) == written


# Both ways


def test_there_and_back(graph: Graph) -> None:
    model = to_model(graph)
    read = from_model(model)
    verify(read)
    assert same_graph(graph, read) is None
    assert to_model(read) == model


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_data_type_of_a_constant(dtype: int) -> None:
    name = dtypes.BY_RUNTIME[dtype].name
    value = torch.tensor([[1, 0], [0, 1]], dtype=torch.uint8)
    made = Graph("graph_1")
    with made:
        ge.NetOutput([ge.Const(value, dtype=dtype)])
    model = to_model(made)
    assert model.graph[0].op[0].attr["value"].t.desc.dtype == dtypes.BY_NAME[name].wire
    read = from_model(model)
    assert same_graph(made, read) is None
    assert to_model(read) == model


def test_floats_survive_the_wire_format() -> None:
    made = Graph("graph_1")
    with made:
        x = ge.Data(index=0)
        made.ops[0].attrs["_floats"] = attr.ListFloat([math.nan, math.inf, -0.0, 0.1])
        made.ops[0].attrs["_third"] = attr.Float(1 / 3)
        ge.NetOutput([x, ge.Const([math.nan, -0.0], dtype=0)])
    read = from_model(to_model(made))
    assert same_graph(made, read) is None
    assert math.copysign(1, read.ops[0].attrs["_floats"].value[2]) == -1
    assert read.ops[0].attrs["_floats"].value[3] == 0.1


@PROPERTY
@given(graphs())
def test_any_graph_survives(made: Graph) -> None:
    verify(made)
    data = to_bytes(made)
    read = from_model(data)
    verify(read)
    assert same_graph(made, read) is None
    assert to_bytes(read) == data


@PROPERTY
@given(graphs())
def test_any_normalised_message_survives(made: Graph) -> None:
    data = to_bytes(made, normalised=True)
    assert to_bytes(from_model(data)) == data


# Runtime facts


def test_obvious_feeds_and_results(graph: Graph) -> None:
    read = from_model(to_model(graph))
    assert read.feeds == {"x": ArgumentFeed(0)}
    assert all(isinstance(result, TensorResult) for result in read.results)
    assert read.returned == [read.by_name["Cast"].outputs[0], read.by_name["MatMul"].outputs[0]]


def test_runtime_facts_survive(graph: Graph) -> None:
    out = graph.by_name["MatMul"].outputs[0]
    fake = FakeTensorMode()
    with fake:
        meta = torch.empty(2, 3, dtype=torch.float16).t()
    aten = torch.ops.aten
    steps = (ViewStep(aten.slice.Tensor, (0, 1, 3), {}, 0), ViewStep(aten.view.dtype, (torch.int32,), {}, 0))
    view = replace(layout_of(meta, storage=1), base=2, steps=steps)
    graph.feeds = {"x": PackFeed((3, 1))}
    graph.results = [
        TensorResult(out, layout_of(meta)),
        AliasResult(graph.by_name["x"].outputs[0], view),
        NumberResult(out),
        ConstantResult(None),
        ConstantResult(2.5),
    ]
    model = to_model(graph, runtime=True)
    read = from_model(model)
    assert same_graph(graph, read) is None
    assert "_torchair_feeds" not in read.attrs
    assert [type(result) for result in read.results] == [type(result) for result in graph.results]
    assert [result.layout for result in read.results[:2]] == [layout_of(meta), view]
    assert to_model(read, runtime=True) == model
    assert "_torchair_feeds" not in to_model(graph).graph[0].attr


def test_results_that_no_file_can_hold(graph: Graph) -> None:
    graph.results = [ConstantResult(object())]
    with pytest.raises(NotPossible, match="output 0"):
        to_model(graph, runtime=True)


def test_a_plain_file_has_a_number_as_stored_and_as_displayed() -> None:
    graph = Graph("plain")
    with graph:
        ge.Const(0.9)
    model = to_model(graph)
    assert sorted(model.graph[0].op[0].attr) == ["_readable_value", "value"]
    assert not model.graph[0].attr
    read = from_model(model)
    assert read.by_name["Const"].attrs["value"].exact is None
    assert "ge.Const(0.9, dtype=0)" in to_python(read)


@pytest.mark.parametrize(
    ("name", "facts", "message"),
    [
        ("_torchair_feeds", {"x": ["other", [0]]}, "is fed by 'other' of \\[0\\]"),
        ("_torchair_feeds", {"x": ["value", [0, 1]]}, "is fed by 'value' of \\[0, 1\\]"),
        ("_torchair_results", [{"kind": "other", "tensor": "x:0"}], "returns something of no known kind"),
        ("_torchair_results", [{"kind": "alias", "tensor": "x:0"}], "returns something of no known kind"),
        ("_torchair_results", [{"kind": "number"}], "returns something of no known kind"),
        ("_torchair_exact", {"x": 0.9}, "has a number for 'x', which is no FLOAT constant"),
        ("_torchair_exact", {"nobody": 0.9}, "has a number for 'nobody', which is no FLOAT constant"),
    ],
)
def test_facts_of_no_known_kind(graph: Graph, name: str, facts: Any, message: str) -> None:
    graph.feeds, graph.results = {"x": ArgumentFeed(0)}, [ConstantResult(None)]
    model = to_model(graph, runtime=True)
    model.graph[0].attr[name].s = json.dumps(facts).encode()
    with pytest.raises(BadGraph, match=message):
        from_model(model)


# Equality


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: setattr(g, "name", "other"), "name"),
        (lambda g: g.attrs.update(_a=attr.Int(1)), "_a"),
        (lambda g: g.by_name["Cast"].attrs.update(dst_type=attr.Int(9)), "dst_type"),
        (lambda g: g.by_name["Cast"].after.clear(), "runs after"),
        (lambda g: setattr(g.by_name["Add"].slots[0], "tensor", g.by_name["Const"].outputs[0]), "inputs"),
        (lambda g: setattr(g.by_name["Add"], "type", "Sub"), "type"),
        (lambda g: setattr(g.by_name["Add"].outputs[0].desc, "layout", "ND"), "input 'x1'|output 0"),
        (lambda g: g.ops.reverse(), "ops"),
        (lambda g: g.subgraph("part"), "sub-graphs"),
    ],
)
def test_differences_are_found(graph: Graph, change: Any, says: str) -> None:
    other = from_model(to_model(graph))
    change(other)
    found = same_graph(graph, other)
    assert found is not None
    assert any(part in found for part in says.split("|")), found


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FC12345])
@pytest.mark.parametrize("kind", ["Float", "ListFloat", "ListListFloat"])
def test_nan_is_nan(kind: str, bits: int) -> None:
    odd = struct.unpack("<f", struct.pack("<I", bits))[0]
    wrap = {"Float": lambda x: x, "ListFloat": lambda x: [x], "ListListFloat": lambda x: [[x]]}[kind]
    ours, theirs = (getattr(attr, kind)(wrap(value)) for value in (math.nan, odd))
    assert same_attr(ours, theirs)
