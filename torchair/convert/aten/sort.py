"""ATen ops that order: sort, top k, search."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten.index import along, counted
from torchair.convert.aten.reduce import alone
from torchair.convert.aten.shape import END
from torchair.convert.base.operands import (
    BOOL,
    INT32,
    INT64,
    cast,
    dim_of,
    pack,
    result_type,
    size_of,
    sizes,
    torch_dtype,
)
from torchair.convert.base.registry import converter

aten = torch.ops.aten


@converter(aten.sort.default)
def sort(self, dim=-1, descending=False):
    """Return sorted values and their indices."""
    return _sort(self, dim, descending, stable=False)


@converter(aten.sort.stable)
def sort_stable(self, *, stable, dim=-1, descending=False):
    """Return sorted values and their indices; equal values keep their order."""
    return _sort(self, dim, descending, stable=bool(stable))


def _sort(self, dim, descending, stable):
    """Sort the last axis, the only one that GE sorts: another one is swapped with it."""
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
    """Return the k largest or smallest elements of a dim, and their indices."""
    if not self.rank:
        return alone(self)
    values, indices = ge.TopKV2(
        self, cast(k, INT32), sorted=sorted, dim=dim_of(dim, self.rank), largest=largest
    )
    return values, cast(indices, INT64)


@converter(aten.kthvalue.default)
def kthvalue(self, k, dim=-1, keepdim=False):
    """Return the k-th smallest element of a dim, and its index."""
    if not self.rank:
        return alone(self)
    place = k - 1 if isinstance(k, int) else ge.Sub(k, cast(1, INT64))
    return _entry(self, dim, place, keepdim)


def _entry(self, dim, place, keepdim):
    """Return one entry, at the same place everywhere, of a sorted dim, and its index."""
    dim = dim_of(dim, self.rank)
    found = pack([place]) if keepdim else cast(place, INT64)
    return [ge.GatherV2(part, found, [dim]) for part in _sort(self, dim, descending=False, stable=True)]


@converter(aten.median.dim)
def median(self, dim, keepdim=False):
    """Return the median of a dim, the lower of two, and its index; the first NaN if there is one."""
    return _median(self, dim, keepdim, skips_nans=False)


@converter(aten.nanmedian.dim)
def nanmedian(self, dim, keepdim=False):
    """Return the median of a dim without its NaNs, the lower of two, and its index."""
    return _median(self, dim, keepdim, skips_nans=True)


def _median(self, dim, keepdim, skips_nans):
    """Select the median; NaNs are sorted to the end, so their number determines its position."""
    if not self.rank:
        return alone(self)
    dim = dim_of(dim, self.rank)
    size, one, two = size_of(self, dim), cast(1, INT64), cast(2, INT64)
    if not torch_dtype(self).is_floating_point:
        place = (size - 1) // 2 if isinstance(size, int) else ge.FloorDiv(ge.Sub(size, one), two)
        return _entry(self, dim, place, keepdim)
    nans = ge.ReduceSum(cast(ge.IsNan(self), INT64), [dim], keep_dims=True)
    rest = ge.Sub(cast(size, INT64), nans)
    if skips_nans:
        place = ge.Maximum(ge.FloorDiv(ge.Sub(rest, one), two), cast(0, INT64))
    else:
        middle = ge.FloorDiv(ge.Sub(cast(size, INT64), one), two)
        place = ge.SelectV2(ge.Greater(nans, cast(0, INT64)), rest, middle)
    parts = _sort(self, dim, descending=False, stable=True)
    found = [ge.GatherElements(part, place, dim=dim) for part in parts]
    return found if keepdim else [ge.Squeeze(part, axis=[dim]) for part in found]


def _median_of_all(skips_nans):
    def run(self):
        if 0 in sizes(self):
            return cast(torch.nan, self.dtype)
        return _median(ge.Reshape(self, [-1]), 0, False, skips_nans)[0]

    return run


converter(aten.median.default)(_median_of_all(skips_nans=False))
converter(aten.nanmedian.default)(_median_of_all(skips_nans=True))


@converter(aten.mode.default)
def mode(self, dim=-1, keepdim=False):
    """Return the most frequent number of a dim, the smallest of several, and its last index."""
    if not self.rank:
        return alone(self)
    dim = dim_of(dim, self.rank)
    values, indices = _sort(self, dim, descending=False, stable=True)
    count = cast(size_of(self, dim), INT64)
    places = along(counted(count), dim, self.rank)
    # A run of equal numbers starts where the number differs from the previous one.
    shape = pack([1 if other == dim else size_of(self, other) for other in range(self.rank)])
    differs = ge.NotEqual(
        ge.StridedSliceV2(values, [1], [END], [dim], [1]), ge.StridedSliceV2(values, [0], [-1], [dim], [1])
    )
    starts = ge.ConcatV2([ge.Fill(shape, cast(True, BOOL)), differs], dim, N=2)
    since = ge.Cummax(ge.SelectV2(starts, places, cast(0, INT64)), dim=dim)[0]
    best = ge.ArgMaxV2(ge.Sub(places, since), cast(dim, INT64), dtype=INT64)
    found = [ge.GatherElements(part, ge.Unsqueeze(best, axes=[dim]), dim=dim) for part in (values, indices)]
    return found if keepdim else [ge.Squeeze(part, axis=[dim]) for part in found]


@converter(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(sorted_sequence, self, *, out_int32=False, right=False, side=None, sorter=None):
    """Return where values would be inserted in a sorted sequence."""
    return _search(sorted_sequence, self, right or side == "right", out_int32, sorter)


@converter(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(self, boundaries, *, out_int32=False, right=False):
    """Return the index of the bucket between boundaries."""
    return _search(boundaries, self, right, out_int32, None)


def _search(sequence, values, right, out_int32, sorter):
    common = result_type(sequence, values)
    return ge.SearchSorted(
        cast(sequence, common), cast(values, common), sorter, dtype=INT32 if out_int32 else INT64, right=right
    )
