"""Lowering: each op traced once, sizes stay symbols, results keep their promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.convert.harness import converted
from torchair import ge
from torchair.core.errors import UnsupportedOp
from torchair.core.torch_private.compilers.inductor import select_decomp_table
from torchair.engine import lower as lowering
from torchair.engine.evaluate import call, evaluate
from torchair.engine.interpret import interpret
from torchair.engine.lower import lower
from torchair.engine.registry import has_kernel, kernel_names
from torchair.fxgraph.layout import layout_of, materialize_layout
from torchair.ge.graph import Graph
from torchair.ge.host import Host

CPU = torch.device("cpu")


def lowered(fn: Any, *args: Any, dynamic: bool = False) -> Any:
    graph, _, gm, fake_mode = converted(fn, args, dynamic)
    placeholders = [(node.name, node.meta["val"]) for node in gm.graph.nodes if node.op == "placeholder"]
    return lower(graph, placeholders, fake_mode, CPU, select_decomp_table())


def calls(gm: Any) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def test_repeated_layers_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    trace = lowering._trace
    monkeypatch.setattr(lowering, "_trace", lambda state, op: traces.append(op.type) or trace(state, op))

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.relu(x @ w)
        return x

    x, w = torch.randn(3, 4), torch.randn(4, 4)
    gm = lowered(fn, x, w)
    assert sorted(traces) == ["MatMul", "Relu"]
    assert calls(gm).count("aten.mm.default") == 20
    torch.testing.assert_close(gm(x, w)[0], fn(x, w))


def test_every_copy_has_a_value_of_its_own() -> None:
    """Two nodes that shared one fake tensor would look like one memory to the passes behind."""
    gm = lowered(lambda x: torch.relu(torch.relu(x) + 1), torch.ones(3))
    values = [node.meta["val"] for node in gm.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert len({id(value) for value in values}) == len(values)


def test_sizes_stay_symbols() -> None:
    def fn(x: torch.Tensor) -> Any:
        rows = x.shape[0] * 2
        return x.reshape(rows, -1) + rows, rows

    gm = lowered(fn, torch.ones(4, 6), dynamic=True)
    assert "aten._local_scalar_dense.default" not in calls(gm)
    for rows in (4, 7):
        x = torch.randn(rows, 6)
        result, number = gm(x)
        torch.testing.assert_close(result, fn(x)[0])
        assert number == 2 * rows


def test_a_result_has_the_strides_of_fx() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    gm = lowered(lambda x: torch.relu(x) + 1, x)
    assert gm(x)[0].is_contiguous(memory_format=torch.channels_last)


def test_a_view_of_an_argument_stays_one() -> None:
    x = torch.randn(4, 6)
    view = lowered(lambda x: [x[1:3].t()], x)(x)[0]
    assert view._base is not None or view.data_ptr() == x[1].data_ptr()
    x[1, 0] = 42
    assert view[0, 0] == 42


def test_the_observer_of_the_reference_run_sees_every_op() -> None:
    graph, *_ = converted(lambda x: torch.relu(x) + 1, [torch.ones(2)])
    seen: list[str] = []
    interpret(graph, [torch.ones(2)], CPU, lambda op, values: seen.append(op.type))
    assert seen == [op.type for op in graph.ops if op.type != "NetOutput"]


def test_lowering_without_kernel_names_op() -> None:
    graph = Graph("unknown")
    with graph:
        op = ge.AbsGrad(ge.Data(index=0), ge.Data(index=1)).op
    assert not has_kernel("AbsGrad")
    with pytest.raises(UnsupportedOp, match="AbsGrad has no kernel") as caught:
        call(op, [torch.ones(1), torch.ones(1)], CPU)
    assert "no kernel on any device" in str(caught.value)


def test_an_attribute_the_kernel_does_not_know_is_refused() -> None:
    graph = Graph("attribute")
    with graph:
        x = ge.Data(index=0)
        op = ge.MatMulV2(x, x, offset_x=3).op
    with pytest.raises(UnsupportedOp, match="offset_x"):
        evaluate(op, {x: torch.ones(2, 2)}, CPU)


def test_size_arithmetic_stays_on_the_host() -> None:
    graph = Graph("sizes")
    with graph:
        op = ge.Add(ge.Data(index=0), ge.Data(index=1)).op
    (result,) = call(op, [Host((2, 3)), Host(1)], CPU)
    assert result == Host((3, 4))


def test_kernels_are_many() -> None:
    assert len(kernel_names()) > 250


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_materialize_layout_gives_promised_strides(order: tuple[int, ...]) -> None:
    back = [order.index(dim) for dim in range(3)]
    promised = torch.empty(2, 3, 4).permute(back).contiguous().permute(order)
    x = torch.randn(2, 3, 4)
    (made,) = materialize_layout([x], [layout_of(promised)])
    assert made.stride() == promised.stride()
    torch.testing.assert_close(made, x)


def test_restride_leaves_what_is_right() -> None:
    x = torch.randn(2, 3)
    assert materialize_layout([x], [layout_of(torch.empty(2, 3))])[0] is x
