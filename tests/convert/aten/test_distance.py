"""Distances between rows against eager, with and without symbolic sizes."""

from __future__ import annotations

import pytest
import torch

from tests.convert.harness import check

aten = torch.ops.aten
A, B = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
ROWS = {
    "cdist": (lambda a, b: (torch.cdist(a, b), torch.cdist(a[0], b)), A, B),
    "cdist_norms": (lambda a, b: [torch.cdist(a, b, p=p) for p in (0.0, 1.0, 3.5, float("inf"))], A, B),
    "cdist_grad": (
        lambda a, b, d: aten._cdist_backward(d + 1, a, b, 1.0, d), A, B, torch.cdist(A, B, p=1.0),
    ),
    "pdist": (lambda a: [torch.pdist(a[0], p=p) for p in (1.0, 2.0, float("inf"))], A),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS)
def test_distance_equals_eager(row: str, dynamic: bool) -> None:
    fn, *args = ROWS[row]
    check(fn, *args, dynamic=dynamic)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_gradient_of_pairs(p: float) -> None:
    check(lambda a: aten._pdist_backward(torch.pdist(a, p) + 1, a, p, torch.pdist(a, p)), A[0])


def test_gradient_of_pairs_of_unknown_number_is_carried_through() -> None:
    report = check(
        lambda a: aten._pdist_backward(torch.pdist(a), a, 2.0, torch.pdist(a)),
        A[0],
        dynamic=True,
        allow=["aten._pdist_backward.default"],
    )
    assert [reason.op for reason in report.fallbacks] == ["aten._pdist_backward.default"]
