"""ATen ops about order: sort, top k, search."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten.reduce import alone
from torchair.convert.operands import INT32, INT64, cast, dim_of, result_type
from torchair.convert.registry import converter

aten = torch.ops.aten


@converter(aten.sort.default)
def sort(self, dim=-1, descending=False):
    """Values and where they stood."""
    return _sort(self, dim, descending, stable=False)


@converter(aten.sort.stable)
def sort_stable(self, *, stable, dim=-1, descending=False):
    """Values and where they stood; equals keep their order."""
    return _sort(self, dim, descending, stable=bool(stable))


def _sort(self, dim, descending, stable):
    """GE sorts the last axis only: another one is swapped with it."""
    if not self.rank:
        return alone(self)
    dim, last = dim_of(dim, self.rank), self.rank - 1
    swap = list(range(self.rank))
    swap[dim], swap[last] = last, dim
    moved = self if dim == last else ge.Transpose(self, swap)
    values, indices = ge.Sort(moved, axis=-1, descending=descending, stable=stable)
    indices = cast(indices, INT64)
    return (values, indices) if dim == last else (ge.Transpose(values, swap), ge.Transpose(indices, swap))


@converter(aten.topk.default)
def topk(self, k, dim=-1, largest=True, sorted=True):
    """The k largest or smallest of a dim, and where they stood."""
    if not self.rank:
        return alone(self)
    values, indices = ge.TopKV2(
        self, cast(k, INT32), sorted=sorted, dim=dim_of(dim, self.rank), largest=largest
    )
    return values, cast(indices, INT64)


@converter(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(sorted_sequence, self, *, out_int32=False, right=False, side=None, sorter=None):
    """Where values would go in a sorted sequence."""
    return _search(sorted_sequence, self, right or side == "right", out_int32, sorter)


@converter(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(self, boundaries, *, out_int32=False, right=False):
    """The number of the bucket between boundaries."""
    return _search(boundaries, self, right, out_int32, None)


def _search(sequence, values, right, out_int32, sorter):
    common = result_type(sequence, values)
    return ge.SearchSorted(
        cast(sequence, common), cast(values, common), sorter, dtype=INT32 if out_int32 else INT64, right=right
    )
