"""Histograms, counts, segment reductions and hashes against eager, with and without symbolic sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.convert.harness import OLD, check

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
EDGES = torch.tensor([-1.0, -0.25, 0.0, 0.5, 2.0])
POINTS = torch.randn(20, 3, generator=torch.Generator().manual_seed(4))
N = torch.tensor([3, 1, 4, 1, 5])


def points(x: torch.Tensor, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """The bins of points and the edges of every column."""
    made = torch.histogramdd(x, *args, **kwargs)
    return [made.hist, *made.bin_edges]


# torch itself knows the shapes of histograms only where sizes are no symbols.
STATIC = {
    "data_range": (lambda x: torch.histogram(x, 7), X),
    "one_point": (lambda x: torch.histogram(x * 0 + 2, 4), X),
    "range": (lambda x: torch.histogram(x, 5, range=(-1.0, 1.0)), X),
    "weights": (lambda x: torch.histogram(x, 5, weight=x.abs()), X),
    "density": (lambda x: torch.histogram(x, 5, density=True), X),
    "edges": (lambda x, e: torch.histogram(x, e), X, EDGES),
    "edges_density": (lambda x, e: torch.histogram(x, e, weight=x.abs(), density=True), X, EDGES),
    "on_edges": (lambda e: torch.histogram(e, e), EDGES),
    "points": (lambda x: points(x, [2, 3, 4]), POINTS),
    "points_range": (lambda x: points(x, [2, 2, 2], range=[-1, 1, -2, 1, 0, 2]), POINTS),
    "points_edges": (lambda x, e: points(x, [e, e, e[:3]], density=True), POINTS, EDGES),
    "empty": (lambda x: points(x[:0], [2, 2, 2]), POINTS),
}
ROWS = {
    "lengths": (
        lambda x: [torch.segment_reduce(x, how, lengths=torch.tensor([2, 0, 3])) for how in REDUCTIONS],
        X,
    ),
    "offsets": (
        lambda x, o: [torch.segment_reduce(x, how, offsets=o) for how in REDUCTIONS],
        X,
        torch.tensor([0, 3, 3, 5]),
    ),
    "initial": (
        lambda x: [
            torch.segment_reduce(x, how, lengths=torch.tensor([2, 0, 3]), initial=0.5) for how in REDUCTIONS
        ],
        X,
    ),
    "rest": (
        lambda x: [
            torch.segment_reduce(x, how, lengths=torch.tensor([2, 1]), unsafe=True) for how in REDUCTIONS
        ],
        X,
    ),
    "batch": (
        lambda x, n: [torch.segment_reduce(x, how, lengths=n, axis=1) for how in REDUCTIONS],
        X.reshape(2, 5, 3),
        torch.tensor([[1, 4, 0], [2, 2, 1]]),
    ),
    "gradients": (
        lambda x, n: [
            torch.ops.aten._segment_reduce_backward(y + 1, y, x, how, lengths=n, axis=1)
            for how in ("sum", "mean", "max", "min")
            for y in [torch.segment_reduce(x, how, lengths=n, axis=1)]
        ],
        X.round().reshape(2, 5, 3),
        torch.tensor([[1, 4, 0], [2, 2, 1]]),
    ),
    "hash": (
        lambda x: (torch.hash_tensor(x), torch.hash_tensor(x, 1), torch.hash_tensor(x, 0, keepdim=True)),
        X,
    ),
    "hash_number": (lambda x: (torch.hash_tensor(x[0, 0], 0), torch.hash_tensor(x[0, 0])), X),
    "hash_ints": (lambda x: torch.hash_tensor((x * 9).long(), 0), X),
}
REDUCTIONS = ("sum", "mean", "prod", "max", "min")


@pytest.mark.parametrize("row", STATIC)
def test_histogram_equals_eager(row: str) -> None:
    fn, *args = STATIC[row]
    check(fn, *args)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS)
def test_segments_and_hashes(row: str, dynamic: bool) -> None:
    fn, *args = ROWS[row]
    check(fn, *args, dynamic=dynamic)


@pytest.mark.parametrize("weights", [False, True])
def test_counting_op_equals_eager(weights: bool) -> None:
    """How many numbers there are is known only when they are."""
    if weights and OLD:
        pytest.skip("fake tensors of this torch say int64 of counts with weights")
    check(lambda n, w: torch.bincount(n, w if weights else None, minlength=4), N, torch.rand(5), dynamic=True)
