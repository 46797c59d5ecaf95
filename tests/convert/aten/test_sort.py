"""Sort, top k and search against eager, with and without symbolic sizes."""

from __future__ import annotations

import pytest
import torch

from tests.convert.harness import check

X = torch.randperm(72).reshape(4, 6, 3).float()
# Two NaNs of five in memory order, so no dim is all NaN: of several NaNs torch does not say which it returns.
NANS = torch.where(torch.arange(72).reshape(X.shape) % 5 < 2, torch.nan, X)
EDGES = torch.tensor([1.0, 3.0, 3.0, 7.0, 20.0])
ROWS = {
    "sort": (lambda x: (*x.sort(), *x.sort(1), *x.sort(0, descending=True)), X),
    "sort_stable": (
        lambda x: (*x.sort(dim=1, stable=True), *(x % 4).sort(dim=-1, stable=True, descending=True)),
        X,
    ),
    "argsort": (lambda x: (x.argsort(1), (x % 4).argsort(dim=0, stable=True)), X),
    "msort": (lambda x: x.msort(), X),
    "topk": (lambda x: (*x.topk(2), *x.topk(3, 1, largest=False)), X),
    "topk_values": (lambda x: x.topk(3, 1, sorted=False)[0].sort(1)[0], X),
    "ints": (lambda x: (*x.sort(1), *x.topk(2, 1)), X.long()),
    "searchsorted": (lambda e, x: (torch.searchsorted(e, x), torch.searchsorted(e, x, right=True)), EDGES, X),
    "searchsorted_side": (lambda e, x: torch.searchsorted(e, x, side="right", out_int32=True), EDGES, X),
    "searchsorted_number": (lambda e: torch.searchsorted(e, 3.0), EDGES),
    "searchsorted_rows": (lambda x: torch.searchsorted(x.sort(-1)[0], x[..., :2].contiguous()), X),
    "searchsorted_sorter": (lambda e: torch.searchsorted(e.flip(0), e, sorter=e.flip(0).argsort()), EDGES),
    "bucketize": (
        lambda e, x: (torch.bucketize(x, e), torch.bucketize(x, e, right=True, out_int32=True)),
        EDGES,
        X,
    ),
    "kthvalue": (lambda x: (*x.kthvalue(2), *x.kthvalue(3, 1, keepdim=True)), X),
    "kthvalue_scalar": (lambda x: x[0, 0, 0].kthvalue(1), X),
    "median": (lambda x: (x.median(), *x.median(1), *x.median(-1, keepdim=True), x.nanmedian()), X),
    "median_nans": (
        lambda x: (*x.median(1), *x.nanmedian(1), x.median(), x.nanmedian(), *x.nanmedian(2, keepdim=True)),
        NANS,
    ),
    "median_only_nans": (lambda x: (*x.nanmedian(1), x.nanmedian()), torch.full((2, 3), torch.nan)),
    "median_ints": (lambda x: (x.median(), *x.median(1), *x.nanmedian(0)), X.long()),
    "median_empty": (lambda x: (x.median(), x.nanmedian()), torch.empty(0)),
    "mode": (lambda x: (*x.mode(1), *x.mode(-1, keepdim=True), *x.mode(0)), X % 3),
    "zero_size": (lambda x: (*x.sort(0), *x.topk(0, 1)), torch.empty(0, 3)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS)
def test_sort_equals_eager(row: str, dynamic: bool) -> None:
    fn, *args = ROWS[row]
    check(fn, *args, dynamic=dynamic)
