"""GE passes: a small IR graph in, a small IR graph out; and a case each where the pass must not fire."""

from __future__ import annotations

import torch

from tests.convert.harness import converted
from torchair import ge
from torchair.ge.graph import ArgumentFeed, Graph, PackFeed, TensorResult
from torchair.ge.host import Host
from torchair.passes import PassContext
from torchair.passes.ge.fold_transpose import move_transpose_into_mm
from torchair.passes.ge.prune import remove_dead_data_and_reorder_data_index, remove_dead_ops
from torchair.passes.ge.sym_pack import optimize_sym_pack


def types(graph: Graph) -> list[str]:
    return [op.type for op in graph.ops]


def test_move_transpose_into_mm() -> None:
    graph, *_ = converted(lambda a, b: a.t() @ b.t(), [torch.ones(3, 2), torch.ones(4, 3)])
    assert move_transpose_into_mm(graph, PassContext()) == 2
    remove_dead_ops(graph, PassContext())
    (product,) = [op for op in graph.ops if op.type == "MatMul"]
    assert product.attributes()["transpose_x1"]
    assert product.attributes()["transpose_x2"]
    assert "Transpose" not in types(graph)


def test_a_transpose_of_other_dims_stays() -> None:
    graph, *_ = converted(
        lambda a, b: torch.bmm(a.transpose(0, 1), b), [torch.ones(3, 2, 4), torch.ones(2, 4, 5)]
    )
    assert move_transpose_into_mm(graph, PassContext()) == 0
    assert "Transpose" in types(graph)


def test_remove_dead_ops_keeps_writes() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.sin(x)
        x.copy_(torch.cos(x))
        return x.relu()

    graph = Graph("dead")
    with graph:
        x = ge.Data(index=0, node_name="x")
        ge.Sin(x)
        ge.Assign(x, ge.Cos(x))
        result = ge.Relu(x)
        ge.NetOutput([result])
    graph.results = [TensorResult(result)]
    assert remove_dead_ops(graph, PassContext()) == 1
    assert types(graph) == ["Data", "Cos", "Assign", "Relu", "NetOutput"]
    assert remove_dead_ops(graph, PassContext()) == 0


def numbers() -> tuple[Graph, list[ge.Tensor]]:
    graph = Graph("numbers")
    with graph:
        made = []
        for index, name in enumerate(("s0", "s1", "x")):
            made.append(ge.Data(index=index, node_name=name))
            graph.feeds[name] = ArgumentFeed(index)
        made[0].meta, made[1].meta, made[2].meta = Host(2), Host(3), torch.empty(6)
    return graph, made


def test_optimize_sym_pack() -> None:
    graph, (s0, s1, x) = numbers()
    with graph:
        first = ge.Reshape(x, ge.Pack([s0, s1], N=2))
        second = ge.Reshape(x, ge.Pack([s0, s1], N=2))
        ge.NetOutput([first, second])
    assert optimize_sym_pack(graph, PassContext()) == 2
    assert remove_dead_data_and_reorder_data_index(graph, PassContext()) == 2
    assert sorted(types(graph)) == ["Data", "Data", "NetOutput", "Reshape", "Reshape"]
    assert PackFeed((0, 1)) in graph.feeds.values()
    assert [op.attrs["index"].value for op in graph.inputs] == [0, 1]


def test_a_pack_with_a_computed_size_stays() -> None:
    graph, (s0, s1, x) = numbers()
    with graph:
        result = ge.Reshape(x, ge.Pack([ge.Add(s0, s1), s1], N=2))
        ge.NetOutput([result])
    assert optimize_sym_pack(graph, PassContext()) == 0
    assert "Pack" in types(graph)


def test_data_that_is_read_stays() -> None:
    graph, (s0, s1, x) = numbers()
    with graph:
        result = ge.Relu(x)
        ge.NetOutput([result, s0, s1])
    assert remove_dead_data_and_reorder_data_index(graph, PassContext()) == 0
