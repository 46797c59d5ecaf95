"""ATen ops that write into part of a tensor.

All of them make a new value. `TensorMove` stands in front of GE ops that write in place; it is dropped where
the old value is not needed any more, so a cache that is updated and copied back is written in place, and only
where it changes.
"""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten.index import index_mask, is_mask, without_masks
from torchair.convert.aten.shape import END, bounds
from torchair.convert.operands import INT64, cast, dim_of, like, pack, same_size, shape_of, size_of, sizes
from torchair.convert.registry import converter
from torchair.ge.host import is_symbol

aten = torch.ops.aten


@converter(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(self, indices, values, accumulate=False, unsafe=False):
    """self[indices] = values, or += values."""
    values = cast(values, self.dtype)
    if (
        not accumulate
        and _is_single(values)
        and [is_mask(entry) for entry in indices if entry is not None] == [True]
    ):
        return _fill_mask(self, indices, values)
    return write_at(self, without_masks(indices), values, accumulate)


def write_at(self, indices, values, accumulate=False):
    """self[indices] = values (or += values), with a tensor or None for each dim."""
    given = [cast(entry, INT64) for entry in indices if entry is not None]
    mask = index_mask(indices)
    return ge.IndexPutV2(ge.TensorMove(self), values, mask, mask, given, accumulate=accumulate)


def _is_single(x):
    """Known to have one element."""
    return all(not is_symbol(size) and size == 1 for size in sizes(x))


def _fill_mask(self, indices, value):
    """One number in all the true places: no need to know how many there are."""
    before = indices.index(next(entry for entry in indices if entry is not None))
    mask = cast(indices[before], ge.DataType.DT_BOOL)
    behind = self.rank - before - mask.rank
    if behind:
        mask = ge.Unsqueeze(mask, axes=list(range(mask.rank, mask.rank + behind)))
    return ge.SelectV2(mask, ge.Reshape(value, []) if value.rank else value, self)


@converter(aten.index_copy.default)
def index_copy(self, dim, index, source):
    """The listed entries of a dim replaced by those of `source`."""
    if not self.rank or not source.rank:
        raise NotImplementedError("a tensor without dims")
    return write_at(self, _in_dim(self, dim, index), source)


@converter(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self, dim, index, value):
    """The listed entries of a dim replaced by one number."""
    if not self.rank:
        raise NotImplementedError("a tensor without dims")
    return write_at(self, _in_dim(self, dim, index), like(value, self))


def _in_dim(self, dim, index):
    """An index list with one entry, a vector."""
    return [None] * dim_of(dim, self.rank) + [_lifted(index)]


@converter(aten.index_add.default)
def index_add(self, dim, index, source, *, alpha=1):
    """alpha * source added to the listed entries of a dim."""
    if not self.rank or not source.rank:
        raise NotImplementedError("a tensor without dims")
    factor = None if alpha == 1 else like(alpha, self)
    return ge.InplaceIndexAdd(
        ge.TensorMove(self), _lifted(index), cast(source, self.dtype), factor, axis=dim_of(dim, self.rank)
    )


@converter(aten.slice_scatter.default)
def slice_scatter(self, src, dim=0, start=None, end=None, step=1):
    """self with self[start:end:step] of one dim replaced by `src`."""
    dim = dim_of(dim, self.rank)
    if same_size(sizes(self)[dim], sizes(src)[dim]) and step == 1:
        return cast(src, self.dtype)
    return _assign(self, cast(src, self.dtype), dim, *bounds(start, end), step)


@converter(aten.select_scatter.default)
def select_scatter(self, src, dim, index):
    """self with one entry of a dim replaced by `src`."""
    dim = dim_of(dim, self.rank)
    if isinstance(index, int) and index < 0:
        size = size_of(self, dim)
        index = index + size if isinstance(size, int) else ge.Add(size, cast(index, INT64))
    stop = index + 1 if isinstance(index, int) else ge.Add(index, cast(1, INT64))
    return _assign(self, cast(ge.Unsqueeze(src, axes=[dim]), self.dtype), dim, index, stop, 1)


@converter(aten.slice_backward.default)
def slice_backward(grad_output, input_sizes, dim, start, end, step):
    """The gradient of a slice: in its place, among zeros."""
    return slice_scatter(ge.Fill(input_sizes, like(0, grad_output)), grad_output, dim, start, end, step)


@converter(aten.select_backward.default)
def select_backward(grad_output, input_sizes, dim, index):
    """The gradient of one entry: in its place, among zeros."""
    return select_scatter(ge.Fill(input_sizes, like(0, grad_output)), grad_output, dim, index)


def _assign(self, value, dim, start, stop, step):
    """Write a slice of one dim; the other dims are whole, which their mask bits say."""
    others = (1 << self.rank) - 1 - (1 << dim)
    to_end = isinstance(stop, int) and stop == END
    begin = [0] * self.rank
    end = list(begin)
    strides = [1] * self.rank
    begin[dim], end[dim], strides[dim] = start, 0 if to_end else stop, step
    return ge.StridedSliceAssign(
        ge.TensorMove(self), pack(begin), pack(end), pack(strides), value,
        begin_mask=others, end_mask=others | (to_end << dim),
    )  # fmt: skip


@converter(aten.scatter.src)
def scatter(self, dim, index, src):
    """For every place of `index`, `src` at that place written where the index says."""
    return _scatter(self, dim, index, src, "none")


@converter(aten.scatter.value)
def scatter_value(self, dim, index, value):
    """For every place of `index`, a number written where the index says."""
    return _scatter(self, dim, index, _filled(index, like(value, self)), "none")


@converter(aten.scatter_add.default)
def scatter_add(self, dim, index, src):
    """As scatter, but added."""
    return _scatter(self, dim, index, src, "add")


_REDUCTIONS = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul"}


@converter(aten.scatter.reduce)
def scatter_reduce(self, dim, index, src, *, reduce):
    """As scatter, but added or multiplied."""
    return _scatter(self, dim, index, src, _REDUCTIONS[reduce])


@converter(aten.scatter.value_reduce)
def scatter_value_reduce(self, dim, index, value, *, reduce):
    """As scatter with a number, but added or multiplied."""
    return _scatter(self, dim, index, _filled(index, like(value, self)), _REDUCTIONS[reduce])


@converter(aten.scatter_reduce.two)
def scatter_reduce_two(self, dim, index, src, reduce, *, include_self=True):
    """Sums and products into what is there, or from 0 and 1 on; GE has no other scatter."""
    if reduce not in _REDUCTIONS:
        raise NotImplementedError(f"scatter_reduce with {reduce!r}")
    if not include_self:
        start = like(1 if reduce == "prod" else 0, self)
        self = _scatter(self, dim, index, _filled(index, start), "none")
    return _scatter(self, dim, index, src, _REDUCTIONS[reduce])


def _filled(index, value):
    return ge.BroadcastTo(value, shape_of(index))


def _scatter(self, dim, index, src, reduction):
    if not self.rank:
        return ge.Squeeze(_scatter(_lifted(self), 0, _lifted(index), _lifted(src), reduction), axis=[0])
    index, src = _lifted(cast(index, INT64)), _lifted(src)
    src = _cut(cast(src, self.dtype), index)
    return ge.ScatterElements(self, index, src, axis=dim_of(dim, self.rank), reduction=reduction)


def _lifted(x):
    """At least one dim."""
    return x if x.rank else ge.Unsqueeze(x, axes=[0])


def _cut(src, index):
    """ATen lets `src` be larger than `index`: only the front is used."""
    larger = [dim for dim in range(src.rank) if not same_size(sizes(src)[dim], sizes(index)[dim])]
    if not larger:
        return src
    ends = pack([size_of(index, dim) for dim in larger])
    return ge.StridedSliceV2(src, [0] * len(larger), ends, larger, [1] * len(larger))


@converter(aten.put.default)
def put(self, index, source, accumulate=False):
    """Elements of the flat tensor replaced, or added to."""
    line = write_at(ge.Reshape(self, [-1]), [_lifted(index)], _lifted(cast(source, self.dtype)), accumulate)
    return ge.Reshape(line, shape_of(self))


@converter(aten.masked_scatter.default)
def masked_scatter(self, mask, source, *, meta_outputs):
    """The true places of a mask replaced by the elements of `source`, in order."""
    same = len(sizes(self)) == meta_outputs.rank and all(map(same_size, sizes(self), meta_outputs.symsize))
    if not same:
        raise NotImplementedError("the mask is larger than the tensor")
    mask = cast(mask, ge.DataType.DT_BOOL)
    if sizes(mask) != sizes(self):
        mask = ge.BroadcastTo(mask, shape_of(self))
    return ge.MaskedScatter(self, mask, cast(source, self.dtype))
