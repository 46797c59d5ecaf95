"""Writing by index, against eager; and that a cache is written in place, only where it changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.convert.harness import check, converted
from tests.support.slow import slow
from torchair.backend.settings.settings import Settings
from torchair.core.torch_private.compilers.inductor import select_decomp_table
from torchair.engine.lower import lower
from torchair.passes import LOWERED_PASSES, PassContext, run

X = torch.randn(5, 6, 3)
I = torch.tensor([0, 4, 2])  # noqa: E741 - an index
MASK = torch.tensor([True, False, True, True, False])
aten = torch.ops.aten


def setting(write: Callable[..., None]) -> Callable[..., torch.Tensor]:
    """A function that writes into a copy."""

    def run(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        write(y, *rest)
        return y

    return run


ROWS = {
    "put": (lambda x, i, v: x.index_put((i,), v), X, I, torch.randn(3, 6, 3)),
    "put_broadcast": (lambda x, i, v: x.index_put((i,), v), X, I, torch.randn(3)),
    "put_none": (lambda x, i, v: aten.index_put(x, [None, i], v), X, I, torch.randn(5, 3, 3)),
    "put_apart": (lambda x, i, v: aten.index_put(x, [i, None, i % 3], v), X, I, torch.randn(3, 6)),
    "put_accumulate": (lambda x, i, v: x.index_put((i % 2,), v, accumulate=True), X, I, torch.randn(3, 6, 3)),
    "put_int32": (lambda x, i, v: x.index_put((i,), v), X, I.int(), torch.randn(3, 6, 3)),
    "put_unsafe": (lambda x, i, v: aten._unsafe_index_put(x, [i], v), X, I, torch.randn(3, 6, 3)),
    "mask_number": (lambda x, m: x.index_put((m,), torch.tensor(7.0)), X, MASK),
    "mask_second_number": (lambda x, m: aten.index_put(x, [None, m], torch.ones(1)), X.transpose(0, 1), MASK),
    "mask_rank2_number": (lambda x: x.index_put((x.sum(-1) > 0,), torch.tensor(0.0)), X),
    "mask_values": (lambda x, m, v: x.index_put((m,), v), X, MASK, torch.randn(3, 6, 3)),
    "mask_accumulate": (lambda x, m, v: x.index_put((m,), v, accumulate=True), X, MASK, torch.randn(3, 6, 3)),
    "copy": (lambda x, i, v: (x.index_copy(0, i, v), x.index_copy(-3, i, v)), X, I, torch.randn(3, 6, 3)),
    "fill": (lambda x, i: (x.index_fill(1, i, 2.5), x.index_fill(0, i, torch.tensor(1.0))), X, I),
    "add": (
        lambda x, i, v: (x.index_add(1, i, v), x.index_add(1, i, v, alpha=2)),
        X,
        I,
        torch.randn(5, 3, 3),
    ),
    "set_slice": (setting(lambda y, v: y[:, 1:4].copy_(v)), X, torch.randn(5, 3, 3)),
    "set_steps": (setting(lambda y: y[::2, -3:].zero_()), X),
    "set_select": (setting(lambda y, v: y[:, 2].copy_(v)), X, torch.randn(5, 3)),
    "set_last": (setting(lambda y, v: y[..., -1].copy_(v)), X, torch.randn(5, 6)),
    "set_whole": (setting(lambda y, v: y[:].copy_(v)), X, torch.randn(5, 6, 3)),
    "set_casts": (setting(lambda y, v: y[1:3].copy_(v)), X, torch.arange(36).reshape(2, 6, 3)),
    "set_none": (setting(lambda y: y[2:2].zero_()), X),
    "slice_scatter": (lambda x, v: x.slice_scatter(v, 1, 2, 5), X, torch.randn(5, 3, 3)),
    "slice_scatter without end": (
        lambda x, v: x.slice_scatter(v, 1, x.shape[1] - 5, 2**63 - 1, 2),
        X,
        torch.randn(5, 3, 3),
    ),
    "select_scatter": (lambda x, v: x.select_scatter(v, 0, -2), X, torch.randn(6, 3)),
    "slice_grad": (lambda g: aten.slice_backward(g, [5, 6, 3], 1, 1, 4, 1), torch.randn(5, 3, 3)),
    "slice_grad_steps": (lambda g: aten.slice_backward(g, [5, 6, 3], 1, 0, 6, 2), torch.randn(5, 3, 3)),
    "select_grad": (lambda g: aten.select_backward(g, [5, 6, 3], 1, 4), torch.randn(5, 3)),
    "scatter": (
        lambda x, i, v: x.scatter(0, i, v),
        X,
        torch.arange(5).flip(0)[:, None, None].expand(5, 2, 3),
        X + 1,
    ),
    "scatter_value": (lambda x, i: x.scatter(1, i, 3.0), X, torch.randint(0, 6, (5, 2, 3))),
    "scatter_add": (lambda x, i, v: x.scatter_add(1, i, v), X, torch.randint(0, 6, (4, 2, 3)), X),
    "scatter_mul": (
        lambda x, i, v: x.scatter(1, i, v, reduce="multiply"),
        X,
        torch.randint(0, 6, (5, 6, 3)),
        X,
    ),
    "scatter_value_add": (lambda x, i: x.scatter(1, i, 3.0, reduce="add"), X, torch.randint(0, 6, (5, 2, 3))),
    "scatter_sum": (lambda x, i, v: x.scatter_reduce(1, i, v, "sum"), X, torch.randint(0, 6, (5, 6, 3)), X),
    "scatter_prod": (lambda x, i, v: x.scatter_reduce(1, i, v, "prod"), X, torch.randint(0, 6, (5, 6, 3)), X),
    "scatter_sum_alone": (
        lambda x, i: x.scatter_reduce(1, i, x, "sum", include_self=False),
        X,
        torch.randint(0, 6, (5, 6, 3)),
    ),
    "scatter_prod_alone": (
        lambda x, i: x.scatter_reduce(1, i, x, "prod", include_self=False),
        X,
        torch.zeros(5, 6, 3).long(),
    ),
    "scatter_scalar": (lambda x, i: x.scatter(0, i, 2.0), torch.tensor(1.0), torch.tensor(0)),
    "put_flat": (lambda x, i: (x.put(i, i.float()), x.put(i, i.float(), accumulate=True)), X, I),
    "masked_scatter": (lambda x, v: x.masked_scatter(x > 0, v), X, torch.randn(90)),
    "masked_scatter_broadcast": (
        lambda x, m, v: x.masked_scatter(m[:, None, None], v),
        X,
        MASK,
        torch.randn(90),
    ),
    "masked_scatter_larger": (
        lambda x, m, v: x[0].masked_scatter(m[:, None, None], v),
        X,
        MASK,
        torch.randn(90),
    ),
    "masked_scatter_grad": (
        lambda x, m: aten.masked_scatter_backward(x, m[:, None, None].expand(5, 6, 3), [10, 9]),
        X,
        MASK,
    ),
    "mask_second_values": (
        lambda x, m, v: (aten.index_put(x, [None, m], v), aten.index_put(x, [None, m], v, True)),
        X.transpose(0, 1),
        MASK,
        torch.randn(6, 3, 3),
    ),
    "mask_row": (lambda x, m, v: (x.index_put((m,), v), x.index_put((m,), v[None, :1], True)), X, MASK, X[0]),
    "mask_rank2_row": (lambda x, v: x.index_put((x.sum(-1) > 0,), v), X, torch.randn(1, 3)),
    "mask_and_index": (
        lambda x, m, i, v: x.index_put((m, i), v),
        X,
        MASK,
        I,
        torch.randn(3, 3),
    ),
    "reduce_scalar": (
        lambda x, i, v: (x.scatter_reduce(0, i, v, "amax"), x.scatter_reduce(0, i, v, "mean")),
        torch.tensor(1.0),
        torch.tensor(0),
        torch.tensor(2.0),
    ),
    "diagonal_scatter": (lambda x, v: x.diagonal_scatter(v, 1, 0, 1), X, torch.randn(3, 5)),
    "zero_size": (lambda x, i, v: x.index_put((i,), v), X, I[:0], torch.randn(0, 6, 3)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.filterwarnings("ignore:The reduce argument")
def test_indexed_write_equals_eager(row: str, dynamic: bool) -> None:
    fn, *args = ROWS[row]
    check(fn, *args, dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool])
def test_indexed_write_of_each_dtype_equals_eager(dtype: torch.dtype) -> None:
    x = (X * 3).to(dtype)
    check(
        lambda x, i, v: (x.index_put((i,), v), x.index_copy(0, i, v), x.slice_scatter(v, 0, 1, 4)),
        x,
        I,
        x[1:4],
    )


@pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [
        (torch.float32, False),
        (torch.float32, True),
        (torch.bfloat16, False),
        slow(torch.bfloat16, True),
        (torch.int64, False),
        slow(torch.int64, True),
    ],
)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["amax", "amin", "mean", "prod"])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_scatter_reduction_equals_eager(
    reduce: str, include_self: bool, dtype: torch.dtype, dynamic: bool
) -> None:
    x, source = (X * 3).to(dtype), (X.flip(0) * 2).to(dtype)
    index = torch.tensor([0, 4, 4])

    def both(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = i[:, None, None].expand(3, 6, 2)
        return (
            x.scatter_reduce(0, places, v, reduce, include_self=include_self),
            x.index_reduce(1, i, v[:, :3], reduce, include_self=include_self),
        )

    check(both, x, index, source, dynamic=dynamic)


CACHE = torch.zeros(2, 3, 16, 4)
CACHES = {
    "index_copy": (lambda c, p, v: c.index_copy_(2, p, v), CACHE, torch.tensor([5]), torch.randn(2, 3, 1, 4)),
    "index_put": (
        lambda c, p, v: aten.index_put_(c, [None, None, p], v),
        CACHE,
        torch.tensor([5, 7]),
        torch.randn(2, 3, 2, 4),
    ),
    "setitem_index": (
        lambda c, p, v: c.__setitem__((slice(None), slice(None), p), v),
        CACHE,
        torch.tensor([3]),
        torch.randn(2, 3, 1, 4),
    ),
    "setitem_slice": (
        lambda c, v: c.__setitem__((slice(None), slice(None), slice(2, 4)), v),
        CACHE,
        torch.randn(2, 3, 2, 4),
    ),
    "setitem_rows": (
        lambda c, v: c.__setitem__((slice(0, 1), slice(None), slice(2, 4)), v),
        CACHE,
        torch.randn(1, 3, 2, 4),
    ),
    "setitem_select": (
        lambda c, v: c.__setitem__((slice(None), slice(None), 2), v),
        CACHE,
        torch.randn(2, 3, 4),
    ),
    "index_add": (lambda c, p, v: c.index_add_(2, p, v), CACHE, torch.tensor([5]), torch.randn(2, 3, 1, 4)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", CACHES)
def test_cache_is_written_in_place(row: str, dynamic: bool) -> None:
    """After reinplacing nothing of the size of the cache is computed or copied."""
    write, *args = CACHES[row]

    def step(cache: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        write(cache, *rest)
        return cache.sum(2)

    graph, _, gm, fake_mode = converted(step, args, dynamic)
    placeholders = [(node.name, node.meta["val"]) for node in gm.graph.nodes if node.op == "placeholder"]
    lowered = lower(graph, placeholders, fake_mode, torch.device("cpu"), select_decomp_table())
    context = PassContext(Settings.of({}).switches("eager"), inputs=[value for _, value in placeholders])
    lowered = run(LOWERED_PASSES, lowered, context)
    full = [
        node for node in lowered.graph.nodes
        if node.op == "call_function" and _numel(node) >= CACHE.numel() and not _in_place(node)
    ]  # fmt: skip
    assert not full, f"{[str(node.target) for node in full]} in\n{lowered.graph}"


def _numel(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    hints = [
        size.node.hint if isinstance(size, torch.SymInt) else size for size in getattr(value, "shape", ())
    ]
    return int(torch.tensor(hints).prod()) if hints else 0


def _in_place(node: torch.fx.Node) -> bool:
    return node.target._schema.is_mutable or node.target in (aten.slice.Tensor, aten.view.default)
