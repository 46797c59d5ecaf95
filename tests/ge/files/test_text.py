"""Graphs as text: the three formats, and that the Python text loads again as the same graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from torch import fx

from tests.ge.graphs import graphs
from torchair import ge
from torchair.core.errors import BadGraph
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv
from torchair.ge import attr
from torchair.ge.files.text import from_python, to_pbtxt, to_python, to_txt
from torchair.ge.files.verify import verify
from torchair.ge.graph import ArgumentFeed, ConstantResult, Graph, Origin, TensorResult
from torchair.ge.proto import schema
from torchair.ge.proto.equality import same_graph
from torchair.ge.proto.write import to_graph_def

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")
PROPERTY = settings(max_examples=80, suppress_health_check=list(HealthCheck))


def small() -> Graph:
    graph = Graph("graph_1")
    with graph:
        x = ge.Data(index=0, dtype=0, shape=[2, -1], placement="CPU", node_name="arg0_1")
        y = ge.Add(x, 1.0)
        a, b = ge.Unpack(y, num=2, outputs=2)
        c = ge.Cast(a, dst_type=1, dependencies=[b])
        values, indices = ge.TopKV2(c, 2, sorted=True)
        ge.NetOutput([values, indices], dependencies=[c])
    return graph


def body(graph: Graph) -> list[str]:
    """The lines behind the header."""
    return to_python(graph).splitlines()[5:]


def same(graph: Graph) -> str | None:
    return same_graph(graph, from_python(to_python(graph, limit=None)), descriptors=False)


# Python


def test_to_python_writes_a_small_graph() -> None:
    assert to_python(small()) == (
        "# -*- coding: utf-8 -*-\n"
        "from torch import tensor\n"
        "from torchair import ge\n"
        "from torchair.ge.graph import current_graph\n"
        "\n"
        "current_graph().name = 'graph_1'\n"
        "arg0_1_0 = ge.Data(index=0, dtype=0, shape=[2, -1], placement='CPU', node_name=\"arg0_1\")\n"
        'Add_0 = ge.Add(arg0_1_0, ge.Const(1.0, dtype=0), node_name="Add")\n'
        "[Unpack_0, Unpack_1] = ge.Unpack(Add_0, num=2, outputs=2)\n"
        'Cast_0 = ge.Cast(Unpack_0, dst_type=1, dependencies=[Unpack_0], node_name="Cast")\n'
        "TopKV2_0, TopKV2_1 = ge.TopKV2(Cast_0, ge.Const(2, dtype=3), sorted=True)\n"
        "\n"
        '_ = ge.NetOutput([TopKV2_0, TopKV2_1], dependencies=[Cast_0], node_name="NetOutput")\n'
    )


def test_python_text_loads() -> None:
    graph = from_python(to_python(small()))
    verify(graph)
    assert same_graph(small(), graph, descriptors=False) is None
    assert graph.feeds == {"arg0_1": ArgumentFeed(0)}
    assert len(graph.results) == 2


def test_python_text_runs_as_a_script() -> None:
    with Graph("elsewhere") as graph:
        exec(to_python(small()), {})
    assert same_graph(small(), graph, descriptors=False) is None


def test_comments_name_the_source_and_the_fx_node() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(torch.empty(4, 3), static_shapes=False)
    nodes = fx.Graph()
    x, n = nodes.placeholder("x"), nodes.placeholder("n")
    x.meta["val"], n.meta["val"] = fake, fake.shape[0]
    add = nodes.call_function(torch.ops.aten.add.Tensor, (x, [n, 1]), {"alpha": 2})
    add.meta["val"] = fake
    again = nodes.call_function(torch.ops.aten.acos.default, (add,))
    again.meta["val"] = fake
    graph = Graph("graph_1")
    with graph:
        data = ge.Data(index=0, node_name="x")
        graph.origin = Origin("add", "aten.add.Tensor", "model.py:3   y = x + 1", add)
        y = ge.Add(data, data)
        z = ge.Mul(y, y)
        graph.origin = Origin("acos", "aten.acos.default", "model.py:3   y = x + 1", again)
        w = ge.Acos(z)
        graph.origin = Origin("gone", "aten.neg.default", "model.py:4   return -y")
        out = ge.Neg(w)
        graph.origin = None
        ge.NetOutput([out])
    symbol = f'n: "Sym({fake.shape[0]})"'
    sizes = f"float32[{fake.shape[0]}, {fake.shape[1]}]cpu"
    assert body(graph)[2:-2] == [
        "",
        "# File model.py:3   y = x + 1",
        f"## FX Code: add_tensor: {sizes} = aten.add.Tensor(x: {sizes}, [{symbol}, 1], alpha = 2)",
        'Add_0 = ge.Add(x_0, x_0, node_name="Add")',
        'Mul_0 = ge.Mul(Add_0, Add_0, node_name="Mul")',
        f"## FX Code: acos_default: {sizes} = aten.acos.default(add_tensor: {sizes})",
        'Acos_0 = ge.Acos(Mul_0, node_name="Acos")',
        "",
        "# File model.py:4   return -y",
        "## FX Code: gone = aten.neg.default",
        'Neg_0 = ge.Neg(Acos_0, node_name="Neg")',
    ]
    assert same(graph) is None


def constants(*values: Any) -> Graph:
    graph = Graph("graph_1")
    with graph:
        x = ge.Data(index=0)
        for value in values:
            x = ge.Add(x, value() if callable(value) else value)
        ge.NetOutput([x])
    return graph


def test_equal_constants_are_written_where_they_are_read() -> None:
    graph = constants(lambda: ge.Const(1.0), lambda: ge.Const(1.0))
    assert sum("ge.Const(1.0, dtype=0)" in line for line in body(graph)) == 2
    assert len(graph.ops) == 5
    assert same(graph) is None


def test_a_constant_with_a_name_of_its_own() -> None:
    graph = constants(lambda: ge.Const(1.0, node_name="one"))
    assert 'ge.Const(1.0, dtype=0, node_name="one")' in body(graph)[2]
    assert same(graph) is None


def test_a_named_constant_that_is_read_twice_gets_a_line() -> None:
    graph = Graph("graph_1")
    with graph:
        x, one = ge.Data(index=0), ge.Const(1.0, node_name="one")
        ge.NetOutput([ge.Add(ge.Add(x, one), one)])
    assert 'one_0 = ge.Const(1.0, dtype=0, node_name="one")' in body(graph)
    assert same(graph) is None


def test_gaps_in_the_numbering_are_kept() -> None:
    graph = constants(lambda: ge.Const(1.0), lambda: ge.Const(2.0), lambda: ge.Const(3.0))
    graph.replace(graph.by_name["Const_1"].outputs[0], graph.by_name["Const"].outputs[0])
    graph.remove([graph.by_name["Const_1"]])
    assert 'ge.Const(3.0, dtype=0, node_name="Const_2")' in to_python(graph)
    assert same(graph) is None


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, 2.5], dtype=torch.float16),
        torch.tensor([0.1, 1 / 3], dtype=torch.float64),
        torch.full((100,), 1 / 3),
        torch.tensor([float("nan"), float("-inf"), -0.0]),
        torch.tensor([1 + 2j, -1j]),
        torch.empty(0, 3),
        torch.tensor(True),
        [[1, 2], [3, 4]],
        float("inf"),
        -1e-7,
        torch.tensor([2**63], dtype=torch.uint64),
    ],
    ids=repr,
)
@pytest.mark.parametrize("readable", [True, False])
def test_constants_come_back_exactly(value: Any, readable: bool) -> None:
    assert same(constants(lambda: ge.Const(value, readable=readable))) is None


def test_long_constants_are_left_out_on_request() -> None:
    graph = constants(torch.zeros(5000))
    text = to_python(graph)
    assert "ge.Const(..., dtype=0)" in text
    with pytest.raises(BadGraph, match="left out"):
        from_python(text)
    assert same(graph) is None


def test_what_no_builder_can_express() -> None:
    graph = Graph("graph_1")
    with graph:
        x = ge.Data(index=0, attrs={"_host_tensor": attr.Bool(True)})
        y = ge.add_op("MatMul", {"x1": x, "x2": x}, {}, [("y", None)])
        z = ge.add_op(
            "Unheard", {"a": y, "b": None}, {"k": attr.ListListInt([[1], []])}, [("p", None), ("q", 2)]
        )
        u = ge.Uniform(z[0], from_changed_as_is_python_key=1.0)
        ge.PrintV2(u)
        ge.NetOutput([u], dependencies=[graph.ops[-1]])
    text = to_python(graph)
    assert "ge.add_op('MatMul', {'x1': Data_0, 'x2': Data_0}" in text
    assert "attrs={'from': ge.attr.Float(1.0)}" in text
    assert "_ = ge.PrintV2" in text
    assert "dependencies=[current_graph().by_name['PrintV2']]" in text
    assert same(graph) is None


def test_names_that_python_cannot_use() -> None:
    graph = Graph("graph_1")
    with graph:
        a, b, c = (ge.Data(index=i, node_name=name) for i, name in enumerate(("m/x.1", "m_x_1", "1")))
        ge.NetOutput([a, b, c])
    assert [line.split(" = ")[0] for line in body(graph)[1:4]] == ["m_x_1_0", "m_x_1_0_", "_1_0"]
    assert same(graph) is None


def test_subgraphs_are_blocks() -> None:
    graph = Graph("main")
    with graph:
        x = ge.Data(index=0)
        with graph.subgraph("f"):
            ge.NetOutput([ge.Data(index=0)])
        y = ge.add_op("PartitionedCall", {"args": [x]}, {}, [("output", 1)], subgraphs=["f"])
        ge.NetOutput(y)
    verify(graph)
    assert "with current_graph().subgraph('f'):" in to_python(graph)
    assert same(graph) is None


def test_feeds_and_results_are_kept() -> None:
    graph = small()
    graph.feeds = {"arg0_1": ArgumentFeed(4)}
    graph.results = [TensorResult(graph.by_name["Add"].outputs[0]), ConstantResult(None)]
    assert same(graph) is None


def test_results_that_cannot_be_text_are_left_out() -> None:
    graph = small()
    graph.results = [ConstantResult(object())]
    assert "# how it is fed and what it returns is left out" in to_python(graph)


@PROPERTY
@given(graphs())
def test_any_graph_comes_back(graph: Graph) -> None:
    assert same(graph) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("import os; os.system('true')", "'os' is not known"),
        ("x = (1).__class__", "not known here"),
        ("x = current_graph().__init__", "not known here"),
        ("x = ge.attr.torch", "not known here"),
        ("x = torch.load('x')", "not known here"),
        ("x = [i for i in (1,)]", "only literals"),
        ("x = tensor([1], device='cuda')", "device"),
        ("def f(): pass", "only calls and assignments"),
        ("for i in (1,): pass", "only calls and assignments"),
        ("x = ge.Acos(y_0)", "'y_0' is not known"),
        ("x = ge.Acoss(1.0)", "not known here"),
        ("x = ge.Acos(1.0, axis=3)", "axis"),
        ("x = ge.Acos(*[1])", "only literals"),
        ("x = ge.Acos(**{'x': 1})", "plain keywords"),
        ("x = {**{}}", "plain dictionaries"),
        ("with 3: pass", "sub-graph"),
        ("x, y = 1, 2, 3", "zip"),
        ("ge.attr = 3", "cannot assign"),
        ("x = -'a'", "negated"),
        ("x = 1 + 1", "complex"),
        ("x = (", "no Python text"),
    ],
)
def test_text_that_is_no_graph_is_refused(line: str, says: str) -> None:
    with pytest.raises(BadGraph, match=says):
        from_python(line)


# The other formats


def test_txt_is_the_message() -> None:
    parsed = text_format.Parse(to_txt(small()), schema.message("GraphDef"))
    assert parsed == to_graph_def(small())


def test_to_pbtxt_escapes_and_counts_nodes() -> None:
    graph = Graph("graph_1")
    with graph:
        x = ge.Data(index=0, dtype=0, shape=[2], node_name="x")
        y = ge.ReduceSum(x, [0], keep_dims=True)
        ge.NetOutput([ge.MatMul(y, y, None)], dependencies=[y])
    text = to_pbtxt(graph)
    assert text.startswith('node {\n    name: "x"\n    op: "Data"\n    attr {\n        key: "index"\n')
    assert "        value {\n            s: 'i: 0\\n'\n        }\n    }\n" in text
    assert '    op: "NetOutput"\n    input: "^ReduceSum"\n    input: "MatMul:0"\n    attr {\n' in text
    assert '        key: "[i]input0"\n' in text
    assert '    input: "ReduceSum:0"\n    input: "ReduceSum:0"\n    input: ""\n' in text
    assert '        key: "[o]y"\n' in text
    assert """            s: 'name: "x1"\\n'""" in text
    assert text.count("node {") == len(graph.ops)


def test_pbtxt_of_nothing() -> None:
    assert to_pbtxt(Graph("empty")) == ""
