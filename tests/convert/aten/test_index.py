"""Reading by index, against eager, with and without symbolic sizes."""

from __future__ import annotations

import pytest
import torch

from tests.convert.harness import check

X = torch.randn(5, 6, 3)
I = torch.tensor([0, 4, 2])  # noqa: E741 - an index
J = torch.tensor([[1, 0, 3], [5, 2, 2]])
MASK = torch.tensor([True, False, True, True, False])
ROWS = {
    "index_first": (lambda x, i: x[i], X, I),
    "index_second": (lambda x, i: x[:, i], X, J),
    "index_pair": (lambda x, i, j: x[i, j], X, I, J),
    "index_apart": (lambda x, i: x[i, :, i], X, torch.tensor([0, 1, 2])),
    "index_negative": (lambda x, i: x[i - 5], X, I),
    "index_int32": (lambda x, i: x[i], X, I.int()),
    "index_single": (lambda x, i: torch.ops.aten.index(x, [None, i]), X, torch.tensor(3)),
    "index_rank2": (lambda x, i: x[i[:, None], torch.arange(3)], X, I),
    "index_select": (lambda x, i: (x.index_select(0, i), x.index_select(-2, i)), X, I),
    "index_select_single": (lambda x, i: x.index_select(1, i), X, torch.tensor(2)),
    "gather": (lambda x, i: x.gather(1, i), X, torch.randint(0, 6, (5, 2, 3))),
    "gather_smaller": (lambda x, i: x.gather(-1, i), X, torch.randint(0, 3, (2, 4, 7))),
    "embedding": (lambda w, i: torch.nn.functional.embedding(i, w), torch.randn(7, 4), J),
    "embedding_vector": (
        lambda w, i: torch.nn.functional.embedding(i, w, padding_idx=1),
        torch.randn(7, 4),
        I,
    ),
    "embedding_single": (
        lambda w, i: torch.nn.functional.embedding(i, w),
        torch.randn(7, 4),
        torch.tensor(3),
    ),
    "embedding_grad": (
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 9, 2, False),
        torch.randn(2, 3, 4),
        J,
    ),
    "embedding_grad_scaled": (
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 9, -1, True),
        torch.randn(2, 3, 4),
        J,
    ),
    "take": (lambda x, i: x.take(i), X, J),
    "transposed": (lambda x, i: x.transpose(0, 1)[i].transpose(0, 2)[1], X, J),
    "zero_size": (lambda x, i: (x[i], x.index_select(0, i)), X, torch.empty(0, dtype=torch.int64)),
    "mask": (lambda x, m: x[m], X, MASK),
    "mask_second": (lambda x, m: x[:, m], X.transpose(0, 1), MASK),
    "mask_rank2": (lambda x: x[x.sum(-1) > 0], X),
    "mask_and_index": (lambda x, m, i: x[m, i], X, MASK, I[:1]),
    "masked_select": (lambda x: x.masked_select(x > 0), X),
    "masked_select_broadcast": (lambda x, m: x.masked_select(m[:, None, None]), X, MASK),
    "nonzero": (lambda x: (x > 0).nonzero(), X),
    "nonzero_columns": (lambda x: torch.where(x > 0), X),
    "embedding_bag": (
        lambda w, i, o: torch.nn.functional.embedding_bag(i, w, o, mode="mean"),
        torch.randn(7, 4),
        I,
        torch.tensor([0, 2]),
    ),
    "unique": (lambda x: torch.unique(x.long()), X),
    "unique_all": (lambda x: torch.unique(x.long(), return_inverse=True, return_counts=True), X),
    "unique_runs": (lambda x: torch.unique_consecutive(x.long().flatten(), return_counts=True), X),
    "unique_slices_runs": (
        lambda x: torch.unique_consecutive((x > 0).long(), return_inverse=True, return_counts=True, dim=1),
        X,
    ),
    "nonzero_static": (
        lambda x: (
            (x > 0).nonzero_static(size=100),
            x.nonzero_static(size=4, fill_value=7),
            x[:, :0].nonzero_static(size=2),
        ),
        X,
    ),
    "repeat_interleave": (lambda x, i: x.repeat_interleave(i, 0), X[:3], I),
    "repeat_interleave_known": (lambda i: torch.repeat_interleave(i, output_size=6), I.int()),
    "gather_scalar": (lambda x, i: (x[0, 0, 0].gather(0, i), x[0, 0].gather(0, i + 1)), X, torch.tensor(0)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS)
def test_indexing_equals_eager(row: str, dynamic: bool) -> None:
    fn, *args = ROWS[row]
    # Eager puts the dim of the slices first in memory; fake tensors do not.
    check(fn, *args, dynamic=dynamic, fakes_err=row == "unique_slices_runs")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool])
def test_indexing_of_each_dtype_equals_eager(dtype: torch.dtype) -> None:
    check(
        lambda x, i, j: (x[i], x[:, i], x.index_select(1, i), x.gather(0, j % 5)), X[..., 0].to(dtype), I, J
    )
