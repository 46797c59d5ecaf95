"""Cat elimination: producers write into their parts of the result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.passes.graphs import calls, in_scope, node, ops, same_results, traced
from torchair.passes.fx.analysis.stream_order import Order
from torchair.passes.fx.inplace.remove_cat_ops import out_overload, remove_cat_ops

aten = torch.ops.aten
X, Y = torch.randn(4, 4), torch.randn(4, 4)


def three(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x @ y, torch.relu(x), torch.sin(y)]) * 2


def test_producers_write_into_slices() -> None:
    gm, ctx = traced(three, X, Y)
    assert remove_cat_ops(gm, ctx) == 1
    assert calls(gm) == [
        "aten.empty.memory_format",
        *["aten.slice.Tensor"] * 3,
        "aten.mm.out",
        "aten.relu.out",
        "aten.sin.out",
        "aten.mul.Tensor",
    ]
    starts = [item.args[2:] for item in gm.graph.nodes if item.target is aten.slice.Tensor]
    assert starts == [(0, 4), (4, 8), (8, 12)]
    same_results(three, gm, X, Y)


def test_other_readers_of_a_producer_read_the_slice() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = x @ y
        return torch.cat([a, torch.relu(x)]).sum() + a.sum()

    gm, ctx = traced(fn, X, Y)
    assert remove_cat_ops(gm, ctx) == 1
    same_results(fn, gm, X, Y)


def test_sizes_may_be_symbols() -> None:
    gm, ctx = traced(three, X, Y, tracing="symbolic")
    assert remove_cat_ops(gm, ctx) == 1
    assert "aten.mm.out" in calls(gm)
    for size in (4, 6):
        same_results(three, gm, torch.randn(size, size), torch.randn(size, size))


def last_dim(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x @ y, torch.relu(x)], 1)


def an_input(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x @ y, x])


def shared(x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b = x @ y, torch.relu(x)
    return torch.cat([a, b]), torch.cat([b, torch.sin(x)])


def same_value_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = x @ y
    return torch.cat([a, a])


def no_out_overload(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.relu(x).view(4, 4), x @ y])


def promoted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x @ y, torch.relu(x.half())])


def returned_too(x: torch.Tensor, y: torch.Tensor) -> Any:
    a = x @ y
    return torch.cat([a, torch.relu(x)]), a


def of_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x @ y])


def by_data(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.relu(x[torch.nonzero(y[0])[:, 0]]), x @ y])


@pytest.mark.parametrize(
    "fn",
    [last_dim, an_input, same_value_twice, no_out_overload, promoted, returned_too, of_one, by_data],
    ids=lambda fn: fn.__name__,
)
def test_cats_that_stay(fn: Any) -> None:
    gm, ctx = traced(fn, X, Y, tracing="symbolic" if fn is by_data else "fake")
    before = calls(gm)
    assert remove_cat_ops(gm, ctx) == 0
    assert calls(gm) == before
    assert ctx.skips or fn in (last_dim, of_one)


def test_a_producer_that_feeds_two_cats_stays() -> None:
    gm, ctx = traced(shared, X, Y)
    assert remove_cat_ops(gm, ctx) == 0
    assert "another cat reads it" in ctx.skips[0].reason


def test_a_producer_on_another_stream_without_an_event_stays() -> None:
    gm, ctx = traced(lambda x, y: torch.cat([torch.relu(torch.exp(x)), torch.sin(y)]), X, Y)
    in_scope(gm, node(gm, aten.relu.default))
    assert remove_cat_ops(gm, ctx) == 0
    assert "another stream" in ctx.skips[0].reason


def test_a_producer_on_another_stream_may_write_after_an_event() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.exp(x)
        return torch.cat([torch.relu(z), torch.sin(y)])

    gm, ctx = traced(fn, X, Y)
    side = node(gm, aten.relu.default)
    in_scope(gm, side)
    with gm.graph.inserting_before(side):
        gm.graph.call_function(ops.wait.default, ([node(gm, aten.exp.default)],))
    assert remove_cat_ops(gm, ctx) == 1
    made = node(gm, aten.empty.memory_format)
    assert Order(gm.graph).stream[made] is None, "the result is allocated on the stream of the cat"
    assert calls(gm).count("npugraph_ex.scope_exit.default") == 1
    same_results(fn, gm, X, Y)


def test_a_cat_on_a_side_stream_allocates_there() -> None:
    gm, ctx = traced(lambda x, y: torch.cat([torch.relu(x), torch.sin(y)]) * 2, X, Y)
    in_scope(gm, node(gm, aten.relu.default), node(gm, aten.cat.default))
    assert remove_cat_ops(gm, ctx) == 1
    assert Order(gm.graph).stream[node(gm, aten.empty.memory_format)] == "side"


@pytest.mark.parametrize(
    ("op", "found"),
    [
        (aten.mm.default, aten.mm.out),
        (aten.add.Tensor, aten.add.out),
        (aten.pow.Tensor_Scalar, aten.pow.Tensor_Scalar_out),
        (aten.view.default, None),
        (aten.topk.default, None),
        (aten.relu_.default, None),
    ],
)
def test_out_overload_of_each_op_is_found(op: Any, found: Any) -> None:
    assert out_overload(op) is found
