"""The verifier: every kind of damage is found and named, valid graphs of any kind pass, and it is fast."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.ge.graphs import graphs
from torchair import ge
from torchair.core.errors import BadGraph
from torchair.ge import attr
from torchair.ge.files.verify import verify
from torchair.ge.graph import ArgumentFeed, Desc, Graph, Op, Origin, Slot, Tensor, TensorResult
from torchair.ge.toposort import sort_ops

PROPERTY = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.fixture
def graph() -> Graph:
    made = Graph("graph_1")
    with made:
        x = ge.Data(index=0, dtype=0, shape=[2], node_name="x")
        y = ge.Add(x, 1.0)
        z = ge.MatMul(y, y, None)
        parts = ge.Unpack(z, num=2, outputs=2)
        packed = ge.Pack(parts, N=2)
        ge.NetOutput([packed, z])
    return made


def foreign() -> Tensor:
    with Graph("other"):
        made: Tensor = ge.Data(index=0, node_name="y")
    return made


def add(graph: Graph, name: str, kind: str = "Acos") -> Op:
    """An op put into the graph without the builder's checks."""
    op = Op(name, kind)
    op.outputs.append(Tensor(op, 0, "y"))
    op.slots.append(Slot(Desc("x"), graph.by_name["x"].outputs[0]))
    graph.ops.insert(-1, op)
    graph.by_name[name] = op
    return op


def slot(graph: Graph, op: str, number: int) -> Slot:
    return graph.by_name[op].slots[number]


def rename_slot(graph: Graph, op: str, number: int, name: str) -> None:
    slot(graph, op, number).desc.name = name


def rename_output(graph: Graph, op: str, number: int, name: str) -> None:
    graph.by_name[op].outputs[number].desc.name = name


def wait_for(graph: Graph, op: str, other: str) -> None:
    graph.by_name[op].after.append(graph.by_name[other])


DAMAGE: list[tuple[Any, str]] = [
    # Names.
    (lambda g: setattr(add(g, "a"), "name", "Add"), "two ops called 'Add'"),
    (lambda g: add(g, " "), "blank name"),
    (lambda g: g.by_name.pop("Add"), "does not know 'Add'"),
    (lambda g: g.by_name.update(gone=g.ops[0]), "that are gone: gone"),
    # Edges.
    (lambda g: setattr(slot(g, "Add", 0), "tensor", foreign()), "'x1' reads y:0, whose op is not in graph_1"),
    (lambda g: g.by_name["Add"].outputs.__setitem__(0, Tensor(g.by_name["Add"], 0, "y")), "does not make"),
    (lambda g: g.by_name["Add"].after.append(foreign().op), "runs after 'y', which is not in"),
    (lambda g: wait_for(g, "Add", "MatMul"), "circle"),
    (lambda g: g.ops.insert(0, g.ops.pop(2)), r"Add \(Add\) reads x, which stands behind it"),
    (lambda g: g.ops.insert(0, g.ops.pop()), "NetOutput .* which stands behind it"),
    (lambda g: setattr(g.by_name["Unpack"].outputs[1], "index", 0), "output 1 of Unpack"),
    # Inputs against the prototype.
    (lambda g: g.by_name["Add"].slots.pop(), "Add needs the input 'x2'"),
    (lambda g: setattr(slot(g, "Add", 1), "tensor", None), "Add needs the input 'x2'"),
    (lambda g: setattr(slot(g, "Pack", 1), "tensor", None), "Pack needs the input 'x1'"),
    (lambda g: rename_slot(g, "Add", 1, "x3"), "Add has no input 'x3'"),
    (lambda g: rename_slot(g, "Add", 1, "x1"), "has input 'x1' twice"),
    (lambda g: rename_slot(g, "Pack", 1, "x2"), "input 'x2' stands where 'x1' belongs"),
    (lambda g: rename_slot(g, "Pack", 1, "x"), "Pack has no input 'x'"),
    # Attributes.
    (lambda g: g.by_name["Add"].attrs.update(axis=attr.Int(1)), "Add has no attribute 'axis'"),
    (lambda g: g.by_name["MatMul"].attrs.update(transpose_x1=attr.Int(1)), "'transpose_x1' is Bool"),
    (lambda g: g.by_name["Add"].attrs.update(_readable_value=attr.Int(1)), "'_readable_value' is Str"),
    (lambda g: g.by_name["Pack"].attrs.pop("N"), "Pack needs the attribute 'N'"),
    # Outputs.
    (lambda g: rename_output(g, "Add", 0, "z"), "Add has no output 'z'"),
    (lambda g: rename_output(g, "Unpack", 1, "y3"), "output 'y3' stands where 'y1' belongs"),
    (lambda g: add(g, "a").outputs.clear(), "Acos makes the output 'y'"),
    (lambda g: rename_output(g, "Const", 0, "value"), "Const has no output 'value'"),
    # The graph as a whole.
    (lambda g: g.by_name["x"].attrs.update(index=attr.Int(1)), "not numbered 0 to 0"),
    (lambda g: g.remove([g.by_name["NetOutput"]]), "must have one NetOutput"),
    (lambda g: g.results.append(TensorResult(foreign())), "output 0 of graph_1 is y:0"),
    (lambda g: g.feeds.update(z=ArgumentFeed(0)), r"without a feed: \['x'\]; fed but not there: \['z'\]"),
    (lambda g: g.by_name["Add"].subgraphs.append("f"), "names the sub-graph 'f'"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGE, ids=[says for _, says in DAMAGE])
def test_damage_is_named(graph: Graph, damage: Any, says: str) -> None:
    verify(graph)
    damage(graph)
    with pytest.raises(BadGraph, match=says):
        verify(graph)


def test_verify_refuses_two_net_outputs(graph: Graph) -> None:
    with graph:
        ge.NetOutput([])
    with pytest.raises(BadGraph, match="NetOutput, NetOutput_1"):
        verify(graph)


def test_subgraphs_are_counted_and_checked(graph: Graph) -> None:
    with graph:
        x = graph.by_name["x"].outputs[0]
        ge.add_op("If", {"cond": x, "input": [x]}, {}, [("output", 1)])
    call = graph.ops[-1]
    with pytest.raises(BadGraph, match="If has 2 sub-graphs"):
        verify(graph)
    call.subgraphs = ["a", "b"]
    for name in call.subgraphs:
        with graph.subgraph(name):
            ge.NetOutput([ge.Data(index=0)])
    verify(graph)
    call.subgraphs.append("a")
    with pytest.raises(BadGraph, match="If has 2 sub-graphs"):
        verify(graph)
    call.subgraphs.pop()
    graph.subgraphs["b"].by_name["Data"].attrs["index"] = attr.Int(4)
    with pytest.raises(BadGraph, match="inputs of b are not numbered"):
        verify(graph)


def test_the_error_is_a_letter(graph: Graph) -> None:
    op = graph.by_name["Add"]
    op.origin = Origin("add", "aten.add.Tensor", "model.py:3   y = x + 1")
    rename_slot(graph, "Add", 1, "x22")
    with pytest.raises(BadGraph) as raised:
        verify(graph)
    assert str(raised.value) == (
        "Add: Add has no input 'x22'\n  at     model.py:3   y = x + 1\n  near   x2; Add(x1, x2) -> y"
    )


def test_ops_outside_the_catalogue_pass(graph: Graph) -> None:
    op = add(graph, "Mine", "Mine")
    op.attrs["anything"] = attr.Int(1)
    verify(graph)


def test_sorting_mends_the_order(graph: Graph) -> None:
    names = [op.name for op in graph.ops]
    assert not sort_ops(graph)
    graph.ops.insert(0, graph.ops.pop())
    assert sort_ops(graph)
    verify(graph)
    assert sorted(names) == sorted(op.name for op in graph.ops)


@PROPERTY
@given(graphs())
def test_any_built_graph_is_valid(made: Graph) -> None:
    verify(made)


def test_ten_thousand_ops_take_well_under_a_second() -> None:
    graph = Graph("long")
    with graph:
        x = ge.Data(index=0, dtype=0, shape=[2])
        for number in range(10_000):
            x = ge.Mul(x, x) if number % 2 else ge.MatMul(x, x, None)
        ge.NetOutput([x])
    verify(graph)
    best = min(_seconds(graph) for _ in range(3))
    assert best < 0.7
    graph.ops.reverse()
    assert sort_ops(graph)
    verify(graph)


def _seconds(graph: Graph) -> float:
    began = time.perf_counter()
    verify(graph)
    return time.perf_counter() - began
