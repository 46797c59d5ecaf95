"""ATen ops that read by index. Ops that write are in `scatter`, ops that order in `sort`."""

from __future__ import annotations

import functools

import torch

from torchair import ge
from torchair.convert.base.operands import (
    BOOL,
    INT64,
    cast,
    dim_of,
    like,
    pack,
    shape_of,
    size_of,
    sizes,
    torch_dtype,
)
from torchair.convert.base.registry import converter, opaque, register_decomposition

aten = torch.ops.aten

_MASKS = (BOOL, ge.DataType.DT_UINT8)


@converter(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(self, indices):
    """Return self[indices]: a tensor for every indexed dim, None for others; a mask selects its true
    positions.
    """
    listed = without_masks(indices)
    given = [cast(entry, INT64) for entry in listed if entry is not None]
    return ge.IndexByTensor(self, given, indices_mask=index_mask(listed))


@register_decomposition(aten.take.default)
def take(self, index):
    """Return elements of the flat tensor. torch's own decomposition reads a single index from the data."""
    return aten.index.Tensor(self.reshape(-1), [index])


def index_mask(indices):
    """Return a 1 for every indexed dim."""
    return [int(entry is not None) for entry in indices]


def is_mask(entry):
    """Return whether an index entry is a bool (or deprecated uint8) tensor."""
    return entry is not None and entry.dtype in _MASKS


def without_masks(indices):
    """Replace every mask in an index list by the coordinates of its true positions, one vector per dim."""
    listed = []
    for entry in indices:
        if not is_mask(entry):
            listed.append(entry)
        elif entry.rank == 0:
            raise NotImplementedError("a mask without dims adds a dim")
        else:
            listed.extend(coordinates(entry))
    return listed


def coordinates(mask):
    """Return for each dim of a mask a vector with the positions of its true elements."""
    found = ge.NonZero(mask, transpose=True)
    if mask.rank == 1:
        return [ge.Squeeze(found, axis=[0])]
    return ge.Unpack(found, num=mask.rank, axis=0, outputs=mask.rank)


def counted(size):
    """Return 0, 1, … size - 1."""
    return ge.Range(cast(0, INT64), cast(size, INT64), cast(1, INT64))


def product(a, b):
    """Return the product of two sizes, ints or sizes in the graph."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return ge.Mul(cast(a, INT64), cast(b, INT64))


def along(vector, dim, rank):
    """Return a vector as a tensor of `rank` dims, all of size 1 but `dim`."""
    return ge.Reshape(vector, [-1 if place == dim else 1 for place in range(rank)])


def flat_places(x, dim, index):
    """Return the index in the flat `x` of each element of `index`: its own position with `dim` replaced."""
    step, places = 1, None
    for other in reversed(range(x.rank)):
        part = index if other == dim else along(counted(size_of(index, other)), other, x.rank)
        part = part if isinstance(step, int) and step == 1 else ge.Mul(part, cast(step, INT64))
        places = part if places is None else ge.Add(places, part)
        step = product(step, size_of(x, other))
    return places


@converter(aten.index_select.default)
def index_select(self, dim, index):
    """Return the listed entries of one dim."""
    if not self.rank:
        return ge.Identity(self)
    listed = index if index.rank else ge.Unsqueeze(index, axes=[0])
    return ge.GatherV2(self, listed, [dim_of(dim, self.rank)])


@converter(aten.gather.default)
def gather(self, dim, index, *, sparse_grad=False):
    """Return for every position of `index` the element of `self` with that index in `dim`."""
    if not self.rank:
        return ge.BroadcastTo(self, shape_of(index)) if index.rank else ge.Identity(self)
    if not index.rank:
        return ge.GatherV2(self, index, [0], negative_index_support=True)
    places = cast(index, INT64)
    if torch_dtype(self) not in (torch.float64, torch.complex64):
        return ge.GatherElements(self, places, dim=dim_of(dim, self.rank))
    # It supports no 8-byte numbers but integers, and only moves bytes.
    words = ge.GatherElements(ge.Bitcast(self, type=INT64), places, dim=dim_of(dim, self.rank))
    return ge.Bitcast(words, type=self.dtype)


@converter(aten.masked_select.default)
def masked_select(self, mask):
    """Return the elements where the mask is true."""
    return ge.MaskedSelect(self, cast(mask, BOOL))


@converter(aten.nonzero.default)
def nonzero(self):
    """Return the coordinates of nonzero elements, one row each."""
    return ge.NonZero(self)


@converter(aten.nonzero_static.default)
def nonzero_static(self, *, size, fill_value=-1):
    """Return the coordinates of the first `size` nonzero elements; extra rows are filled."""
    if not self.rank:
        raise NotImplementedError("a tensor without dims has no coordinates")
    if 0 in sizes(self):
        return ge.Fill(pack([size, self.rank]), cast(fill_value, INT64))
    flags = ge.NotEqual(ge.Reshape(self, [-1]), like(0, self))
    numbers = ge.Sub(ge.Cumsum(cast(flags, INT64), 0), cast(1, INT64))
    # Elements without a row go to an extra last row, which is removed.
    has_row = ge.LogicalAnd(flags, ge.Less(numbers, cast(size, INT64)))
    rows = ge.SelectV2(has_row, numbers, cast(size, INT64))
    more = size + 1 if isinstance(size, int) else ge.Add(size, cast(1, INT64))
    total = functools.reduce(product, (size_of(self, dim) for dim in range(self.rank)), 1)
    start = ge.Fill(pack([more]), cast(-1, INT64))
    line = ge.ScatterElements(start, rows, counted(total), axis=0)
    line = ge.StridedSliceV2(line, [0], pack([size]), [0], [1])
    columns, after = [], 1
    for dim in reversed(range(self.rank)):
        column = ge.FloorMod(ge.FloorDiv(line, cast(after, INT64)), cast(size_of(self, dim), INT64))
        columns.insert(0, column)
        after = product(after, size_of(self, dim))
    found = ge.Pack(columns, axis=1, N=self.rank)
    is_filled = ge.Unsqueeze(ge.Less(line, cast(0, INT64)), axes=[1])
    return ge.SelectV2(is_filled, cast(fill_value, INT64), found)


@converter(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats, *, output_size=None):
    """Repeat every number from 0 on as often as its entry."""
    if output_size is None:
        return ge.RepeatInterleave(cast(counted(size_of(repeats, 0)), repeats.dtype), repeats, axis=0)
    # Entry i ends at the sum of the entries up to it: a position belongs to the first entry that ends after
    # it.
    ends = ge.Cumsum(cast(repeats, INT64), 0)
    return ge.SearchSorted(ends, counted(output_size), None, dtype=repeats.dtype, right=True)


@converter(aten._unique2.default)
def unique(self, sorted=True, return_inverse=False, return_counts=False):
    """Return the distinct elements, the index of each element among them, and the counts."""
    return ge.UniqueWithCountsAndSorting(
        self, return_inverse=return_inverse, return_counts=return_counts, sorted=sorted
    )


@converter(aten.unique_consecutive.default)
def unique_consecutive(self, return_inverse=False, return_counts=False, dim=None):
    """Return the first element of every run of equal ones, the run of each element, and the run lengths."""
    if dim is not None and dim < 0:
        raise NotImplementedError("torch returns a wrong shape if the dim is counted from the end")
    axis = {} if dim is None else {"axis": dim}
    return ge.UniqueConsecutive(self, return_idx=return_inverse, return_counts=return_counts, **axis)


@converter(aten.unique_dim_consecutive.default)
def unique_dim_consecutive(self, dim, return_inverse=False, return_counts=False):
    """Return the first of every run of equal slices."""
    return unique_consecutive(self, return_inverse, return_counts, dim)


@converter(aten._unique.default)
def unique_without_counts(self, sorted=True, return_inverse=False):
    """Return the distinct elements, and the index of each element among them."""
    return ge.UniqueWithCountsAndSorting(self, return_inverse=return_inverse, sorted=sorted)[:2]


opaque({aten.unique_dim.default: "slices are ordered by their first difference, which no IR op supports"})
