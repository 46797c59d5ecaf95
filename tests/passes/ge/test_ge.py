"""GE passes: a small IR graph in, a small IR graph out; and a case each where the pass must not fire."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.convert.harness import converted
from torchair import ge
from torchair.engine.evaluate import evaluate_now
from torchair.ge.files.verify import verify
from torchair.ge.graph import ArgumentFeed, Graph, PackFeed, TensorResult
from torchair.ge.host import Host
from torchair.passes import PassContext
from torchair.passes.ge.dead_code import remove_dead_data_and_reorder_data_index, remove_dead_ops
from torchair.passes.ge.fold_constants import fold_constants
from torchair.passes.ge.fold_sym_pack import optimize_sym_pack
from torchair.passes.ge.fold_transpose import move_transpose_into_mm
from torchair.passes.ge.mark_ref_inputs import mark_reference_inputs
from torchair.passes.ge.remove_ref_copies import optimize_reference_op_redundant_copy
from torchair.passes.ge.side_effect_order import explicit_order_for_cmo, explicit_order_for_side_effect_nodes
from torchair.passes.ge.topological_sort import order_ops


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


def computing() -> PassContext:
    return PassContext(compute=lambda op, values: evaluate_now(op, values, torch.device("cpu")))


def test_fold_constants_computes_values_once() -> None:
    graph, *_ = converted(lambda x: x + torch.arange(3.0).exp().sqrt(), [torch.ones(3)])
    assert fold_constants(graph, computing()) == 1
    remove_dead_ops(graph, PassContext())
    assert types(graph) == ["Data", "Const", "Add", "NetOutput"]
    torch.testing.assert_close(graph.ops[1].attrs["value"].value, torch.arange(3.0).exp().sqrt())
    verify(graph)
    assert fold_constants(graph, computing()) == 0


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x + 1, torch.arange(3.0).exp()),  # a result
        lambda x: x + torch.rand(3).exp(),  # random
        lambda x: x + torch.full((3,), 2.0),  # as quickly made as read
        lambda x: x + torch.arange(3.0),
        lambda x: x[0] + torch.arange(20000.0).exp(),  # large
        lambda x: x.exp() + 1,
    ],
    ids=["result", "random", "filled", "range", "large", "input"],
)
def test_what_is_not_folded(fn: Any) -> None:
    graph, *_ = converted(fn, [torch.ones(3)])
    before = types(graph)
    assert fold_constants(graph, computing()) == 0
    assert types(graph) == before


def written(count: int) -> Graph:
    """Inputs that are all written; of the same tensor, as far as anybody knows."""
    graph, value = Graph("written"), torch.empty(2, 3)
    with graph:
        for index in range(count):
            x = ge.Data(index=index, node_name=f"x{index}")
            x.meta = value
            graph.feeds[x.op.name] = ArgumentFeed(index)
            ge.Assign(x, ge.Cos(x))
        ge.NetOutput([])
    return graph


def test_mark_reference_inputs() -> None:
    graph = written(1)
    assert mark_reference_inputs(graph, PassContext()) == 1
    (reference,) = graph.inputs
    assert reference.name == f"RefData_2_3_3_1_0_{id(reference.outputs[0].meta)}"
    assert reference.attrs["_origin_data_name"].value == "x0"
    assert list(graph.feeds) == [reference.name] == [graph.by_name[reference.name].name]
    verify(graph)
    assert mark_reference_inputs(graph, PassContext()) == 0


def test_a_tensor_that_is_an_input_twice_is_one_reference() -> None:
    graph, context = written(2), PassContext()
    assert mark_reference_inputs(graph, context) == 1
    assert types(graph) == ["RefData", "Cos", "Assign", "Data", "Cos", "Assign", "NetOutput"]
    assert [(skip.node, "same tensor" in skip.reason) for skip in context.skips] == [("x1", True)]


def test_inputs_that_are_read_only_stay_data() -> None:
    graph, *_ = converted(lambda x: x.sin(), [torch.ones(3)])
    assert mark_reference_inputs(graph, PassContext()) == 0


@pytest.mark.parametrize("strategy", ["BFS", "DFS", "RDFS", "StableRDFS"])
def test_every_order_is_one_in_which_ops_can_run(strategy: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [(x * number).sin() for number in range(2, 30)]
        return torch.cat(parts[::-1]).softmax(0), y.exp() @ parts[3], sum(parts[::2], y)

    graph, *_ = converted(fn, [torch.randn(4, 4), torch.randn(4, 4)])
    before = list(graph.ops)
    moved = order_ops(graph, PassContext(order=strategy))
    assert (moved == 0) == (strategy == "StableRDFS")
    assert set(graph.ops) == set(before)
    verify(graph)
    assert order_ops(graph, PassContext(order=strategy)) == 0, "sorted is sorted"


@pytest.mark.parametrize("strategy", ["BFS", "DFS", "RDFS"])
def test_nothing_passes_a_write(strategy: str) -> None:
    graph = Graph("written")
    with graph:
        x = ge.Data(index=0, node_name="x")
        old = ge.Sin(x)
        new = ge.Assign(x, ge.Cos(x))
        ge.NetOutput([ge.Exp(new), ge.Relu(old), ge.Abs(x)])
    order_ops(graph, PassContext(order=strategy))
    place = types(graph).index("Assign")
    assert set(types(graph)[:place]) == {"Data", "Sin", "Cos"}


def cached(is_read: bool) -> Graph:
    """An input is copied, a reference op writes the copy, and the result goes back to the input."""
    graph = Graph("cached")
    with graph:
        cache, index, update = (ge.Data(index=number) for number in range(3))
        made = ge.ScatterNdUpdate(ge.TensorMove(cache), index, update)
        ge.Assign(cache, made)
        kept = ge.Relu(made if is_read else update)
        ge.NetOutput([kept])
    graph.results = [TensorResult(kept)]
    return graph


@pytest.mark.parametrize("is_read", [False, True])
def test_reference_ops_write_the_input_itself(is_read: bool) -> None:
    graph = cached(is_read)
    assert optimize_reference_op_redundant_copy(graph, PassContext()) == 1
    assert "TensorMove" not in types(graph)
    (scatter,) = [op for op in graph.ops if op.type == "ScatterNdUpdate"]
    assert scatter.inputs[0].op.type == "Data"
    # An Assign that nothing else would keep the op for stays.
    assert ("Assign" in types(graph)) == (not is_read)
    assert optimize_reference_op_redundant_copy(graph, PassContext()) == 0


def test_an_input_that_others_read_is_copied() -> None:
    graph = cached(is_read=True)
    with graph:
        other = ge.Neg(graph.inputs[0].outputs[0])
        graph.results.append(TensorResult(other))
    assert optimize_reference_op_redundant_copy(graph, PassContext()) == 0
    assert "TensorMove" in types(graph)


def test_side_effects_are_tied_in_program_order() -> None:
    graph = Graph("talking")
    with graph:
        x = ge.Data(index=0)
        ge.PrintV2(x)
        ge.Assign(x, ge.Neg(x))
        ge.PrintV2(x)
        ge.NetOutput([ge.Abs(x)])
    first, second = [op for op in graph.ops if op.type == "PrintV2"]
    (write,) = [op for op in graph.ops if op.type == "Assign"]
    assert explicit_order_for_side_effect_nodes(graph, PassContext()) == 4
    assert second.after == [first, write]
    assert write.after == [first]
    assert graph.output is not None
    assert graph.output.after == [second]
    assert explicit_order_for_side_effect_nodes(graph, PassContext()) == 0


def test_loads_of_memory_are_tied_in_program_order() -> None:
    graph = Graph("loads")
    with graph:
        x = ge.Data(index=0)
        for size in (1, 2):
            ge.Cmo(x, max_size=size, type=6)
        ge.NetOutput([ge.Abs(x)])
    first, second = [op for op in graph.ops if op.type == "Cmo"]
    assert explicit_order_for_cmo(graph, PassContext()) == 2
    assert second.after == [first]
    assert graph.output is not None
    assert graph.output.after == [second]
