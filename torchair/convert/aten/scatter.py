"""ATen ops that write into part of a tensor.

All of them return a new value. `TensorMove` comes before GE ops that write in place; it is dropped if the old
value is no longer needed. So a cache that is updated and copied back is written in place, and only where it
changes.
"""

from __future__ import annotations

import functools

import torch

from torchair import ge
from torchair.convert.aten.index import flat_places, index_mask, is_mask, product, without_masks
from torchair.convert.aten.shape import END, bounds
from torchair.convert.base.operands import (
    BOOL,
    INT64,
    cast,
    dim_of,
    like,
    pack,
    same_size,
    shape_of,
    size_of,
    sizes,
    torch_dtype,
)
from torchair.convert.base.registry import converter

aten = torch.ops.aten


@converter(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(self, indices, values, accumulate=False, unsafe=False):
    """self[indices] = values, or += values."""
    values = cast(values, self.dtype)
    given = [place for place, entry in enumerate(indices) if entry is not None]
    if len(given) == 1 and is_mask(indices[given[0]]) and indices[given[0]].rank:
        return _put_masked(self, given[0], cast(indices[given[0]], BOOL), values, accumulate)
    return write_at(self, without_masks(indices), values, accumulate)


def write_at(self, indices, values, accumulate=False):
    """self[indices] = values (or += values), with a tensor or None for each dim."""
    given = [cast(entry, INT64) for entry in indices if entry is not None]
    mask = index_mask(indices)
    return ge.IndexPutV2(ge.TensorMove(self), values, mask, mask, given, accumulate=accumulate)


def _put_masked(self, before, mask, values, accumulate):
    """Write values where the only mask is true; the first dim of the mask is `before`.

    The number of true elements need not be known: the value is the same for all, or there is one each, in
    order.
    """
    after = self.rank - before - mask.rank
    entry = values.rank - 1 - after
    if entry < 0 or same_size(sizes(values)[entry], 1):
        mask = _spread(mask, after)
        extra = list(range(entry + 1, entry + mask.rank - after)) if entry >= 0 else []
        values = ge.Unsqueeze(values, axes=extra) if extra else values
        return ge.SelectV2(mask, ge.Add(self, values) if accumulate else values, self)
    # In the order of the mask: its dims come first.
    inner = list(range(before, before + mask.rank))
    order = [*inner, *(dim for dim in range(self.rank) if dim not in inner)]
    rest = [size_of(self, dim) for dim in order[mask.rank :]]
    count = size_of(values, entry)
    values = ge.BroadcastTo(values, pack([*rest[:before], count, *rest[before:]]))
    if before:
        values = ge.Transpose(values, [before, *range(before), *range(before + 1, before + 1 + after)])
        self = ge.Transpose(self, order)
    mask = ge.BroadcastTo(_spread(mask, self.rank - mask.rank), shape_of(self))
    result = ge.MaskedScatter(ge.ZerosLike(self) if accumulate else self, mask, values)
    result = ge.Add(self, result) if accumulate else result
    return ge.Transpose(result, [order.index(dim) for dim in range(result.rank)]) if before else result


def _spread(mask, behind):
    """Append dims of size 1 to a mask."""
    return ge.Unsqueeze(mask, axes=list(range(mask.rank, mask.rank + behind))) if behind else mask


@converter(aten.index_copy.default)
def index_copy(self, dim, index, source):
    """Replace the listed entries of a dim by those of `source`."""
    if not self.rank or not source.rank:
        raise NotImplementedError("the tensor has no dims")
    return write_at(self, _in_dim(self, dim, index), source)


@converter(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self, dim, index, value):
    """Replace the listed entries of a dim by one number."""
    if not self.rank:
        raise NotImplementedError("the tensor has no dims")
    return write_at(self, _in_dim(self, dim, index), like(value, self))


def _in_dim(self, dim, index):
    """Return an index list with one entry, a vector."""
    return [None] * dim_of(dim, self.rank) + [_lifted(index)]


@converter(aten.index_add.default)
def index_add(self, dim, index, source, *, alpha=1):
    """Add alpha * source to the listed entries of a dim."""
    if not self.rank or not source.rank:
        raise NotImplementedError("the tensor has no dims")
    factor = None if alpha == 1 else like(alpha, self)
    return ge.InplaceIndexAdd(
        ge.TensorMove(self), _lifted(index), cast(source, self.dtype), factor, axis=dim_of(dim, self.rank)
    )


@converter(aten.slice_scatter.default)
def slice_scatter(self, src, dim=0, start=None, end=None, step=1):
    """Return self with self[start:end:step] of one dim replaced by `src`."""
    dim = dim_of(dim, self.rank)
    if same_size(sizes(self)[dim], sizes(src)[dim]) and step == 1:
        return cast(src, self.dtype)
    return _assign(self, cast(src, self.dtype), dim, *bounds(start, end), step)


@converter(aten.select_scatter.default)
def select_scatter(self, src, dim, index):
    """Return self with one entry of a dim replaced by `src`."""
    dim = dim_of(dim, self.rank)
    if isinstance(index, int) and index < 0:
        size = size_of(self, dim)
        index = index + size if isinstance(size, int) else ge.Add(size, cast(index, INT64))
    stop = index + 1 if isinstance(index, int) else ge.Add(index, cast(1, INT64))
    return _assign(self, cast(ge.Unsqueeze(src, axes=[dim]), self.dtype), dim, index, stop, 1)


@converter(aten.slice_backward.default)
def slice_backward(grad_output, input_sizes, dim, start, end, step):
    """Return the gradient of a slice at its position among zeros."""
    return slice_scatter(ge.Fill(input_sizes, like(0, grad_output)), grad_output, dim, start, end, step)


@converter(aten.select_backward.default)
def select_backward(grad_output, input_sizes, dim, index):
    """Return the gradient of one entry at its position among zeros."""
    return select_scatter(ge.Fill(input_sizes, like(0, grad_output)), grad_output, dim, index)


def _assign(self, value, dim, start, stop, step):
    """Write a slice of one dim; mask bits mark the other dims as whole."""
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
    """Write each element of `src` at its own position with `dim` replaced by `index`."""
    return _scatter(self, dim, index, src, "none")


@converter(aten.scatter.value)
def scatter_value(self, dim, index, value):
    """Write a number at each position with `dim` replaced by `index`."""
    return _scatter(self, dim, index, _filled(index, like(value, self)), "none")


@converter(aten.scatter_add.default)
def scatter_add(self, dim, index, src):
    """Scatter by addition."""
    return _scatter(self, dim, index, src, "add")


_REDUCTIONS = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul"}


@converter(aten.scatter.reduce)
def scatter_reduce(self, dim, index, src, *, reduce):
    """Scatter by addition or multiplication."""
    return _scatter(self, dim, index, src, _REDUCTIONS[reduce])


@converter(aten.scatter.value_reduce)
def scatter_value_reduce(self, dim, index, value, *, reduce):
    """Scatter a number by addition or multiplication."""
    return _scatter(self, dim, index, _filled(index, like(value, self)), _REDUCTIONS[reduce])


@converter(aten.scatter_reduce.two)
def scatter_reduce_two(self, dim, index, src, reduce, *, include_self=True):
    """Scatter by a reduction with the old values, or among the new ones only."""
    if not self.rank:
        lifted = [_lifted(x) for x in (self, index, src)]
        result = scatter_reduce_two(lifted[0], 0, *lifted[1:], reduce, include_self=include_self)
        return ge.Squeeze(result, axis=[0])
    index = _lifted(index)
    if not include_self:
        self = _scatter(self, dim, index, _filled(index, neutral(self, reduce)), "none")
    if reduce in _REDUCTIONS:
        return _scatter(self, dim, index, src, _REDUCTIONS[reduce])
    if reduce == "mean":
        ones = _scatter(
            _counts(self, include_self), dim, index, _filled(index, like(1, self)), _REDUCTIONS["sum"]
        )
        return _mean(_scatter(self, dim, index, src, "add"), ones)
    places = flat_places(self, dim_of(dim, self.rank), cast(index, INT64))
    src = _cut(cast(_lifted(src), self.dtype), index)
    line = _EXTREMES[reduce](ge.Reshape(self, [-1]), ge.Reshape(places, [-1, 1]), ge.Reshape(src, [-1]))
    return ge.Reshape(line, shape_of(self))


_EXTREMES = {"amax": ge.TensorScatterMax, "amin": ge.TensorScatterMin}


def neutral(x, reduce):
    """Return the neutral element of a reduction."""
    if reduce in ("amax", "amin"):
        return like(lowest(x) if reduce == "amax" else highest(x), x)
    return like(1 if reduce == "prod" else 0, x)


def highest(x):
    """Return the largest number of a dtype."""
    dtype = torch_dtype(x)
    if dtype.is_floating_point:
        return torch.inf
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def lowest(x):
    """Return the smallest number of a dtype."""
    dtype = torch_dtype(x)
    if dtype.is_floating_point:
        return -torch.inf
    return False if dtype is torch.bool else torch.iinfo(dtype).min


def _counts(self, include_self):
    """Return how many numbers each place has initially."""
    return ge.OnesLike(self) if include_self else ge.ZerosLike(self)


def _mean(total, counts):
    """Divide sums by counts; a place without numbers keeps its value. Integers are rounded down."""
    divide = ge.Div if torch_dtype(total).is_floating_point else ge.FloorDiv
    return divide(total, ge.Maximum(counts, like(1, counts)))


@converter(aten.index_reduce.default)
def index_reduce(self, dim, index, source, reduce, *, include_self=True):
    """Combine the listed entries of a dim with those of `source`."""
    if not self.rank:
        result = index_reduce(
            _lifted(self), 0, _lifted(index), _lifted(source), reduce, include_self=include_self
        )
        return ge.Squeeze(result, axis=[0])
    dim, index, source = dim_of(dim, self.rank), _lifted(cast(index, INT64)), cast(source, self.dtype)
    if not include_self:
        self = write_at(self, [None] * dim + [index], neutral(self, reduce))
    if reduce == "mean":
        start = _counts(self, include_self)
        counts = ge.InplaceIndexAdd(ge.TensorMove(start), index, ge.OnesLike(source), axis=dim)
        return _mean(ge.InplaceIndexAdd(ge.TensorMove(self), index, source, axis=dim), counts)
    front = [dim, *(other for other in range(self.rank) if other != dim)]
    x, source = (ge.Transpose(part, front) if dim else part for part in (self, source))
    if reduce == "prod":
        result = ge.ScatterMul(ge.TensorMove(x), index, source)
    else:
        result = _EXTREMES[reduce](x, ge.Unsqueeze(index, axes=[1]), source)
    return ge.Transpose(result, [front.index(place) for place in range(self.rank)]) if dim else result


def _filled(index, value):
    return ge.BroadcastTo(value, shape_of(index))


def _scatter(self, dim, index, src, reduction):
    if not self.rank:
        return ge.Squeeze(_scatter(_lifted(self), 0, _lifted(index), _lifted(src), reduction), axis=[0])
    index, src = _lifted(cast(index, INT64)), _lifted(src)
    src = _cut(cast(src, self.dtype), index)
    return ge.ScatterElements(self, index, src, axis=dim_of(dim, self.rank), reduction=reduction)


def _lifted(x):
    """Return the tensor with at least one dim."""
    return x if x.rank else ge.Unsqueeze(x, axes=[0])


def _cut(src, index):
    """Cut `src` to the sizes of `index`: ATen allows it to be larger and uses the front."""
    larger = [dim for dim in range(src.rank) if not same_size(sizes(src)[dim], sizes(index)[dim])]
    if not larger:
        return src
    ends = pack([size_of(index, dim) for dim in larger])
    return ge.StridedSliceV2(src, [0] * len(larger), ends, larger, [1] * len(larger))


@converter(aten.put.default)
def put(self, index, source, accumulate=False):
    """Replace elements of the flat tensor, or add to them."""
    line = write_at(ge.Reshape(self, [-1]), [_lifted(index)], _lifted(cast(source, self.dtype)), accumulate)
    return ge.Reshape(line, shape_of(self))


@converter(aten.masked_scatter.default)
def masked_scatter(self, mask, source, *, meta_outputs):
    """Replace the elements where a mask is true by those of `source`, in order."""
    shape = _wanted_shape(meta_outputs, self, mask)
    mask = cast(mask, BOOL)
    self, mask = (
        x if len(sizes(x)) == meta_outputs.rank and all(map(same_size, sizes(x), meta_outputs.symsize))
        else ge.BroadcastTo(x, shape)
        for x in (self, mask)
    )  # fmt: skip
    return ge.MaskedScatter(self, mask, cast(source, self.dtype))


def _wanted_shape(spec, *tensors):
    """Return the shape of a result as numbers of the graph: each size is that of a tensor which broadcasts to
    it.
    """
    wanted = []
    for place, size in enumerate(spec.symsize):
        back = place - spec.rank
        owner = next(x for x in tensors if x.rank >= -back and same_size(sizes(x)[back], size))
        wanted.append(size_of(owner, owner.rank + back))
    return pack(wanted)


@converter(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad_output, mask, sizes):
    """Return the gradients of the true elements, in order, followed by zeros."""
    flags = ge.Reshape(cast(ge.BroadcastTo(mask, ge.Shape(grad_output, dtype=INT64)), INT64), [-1])
    count = (
        functools.reduce(product, sizes, 1) if isinstance(sizes, list) else ge.ReduceProdD(sizes, axes=[0])
    )
    # Where the mask is false, the gradient goes to an extra last place, which is removed.
    places = ge.SelectV2(cast(flags, BOOL), ge.Sub(ge.Cumsum(flags, 0), cast(1, INT64)), cast(count, INT64))
    more = ge.Add(count, cast(1, INT64)) if isinstance(count, ge.Tensor) else count + 1
    zeros = ge.Fill(pack([more]), like(0, grad_output))
    line = ge.ScatterElements(zeros, places, ge.Reshape(grad_output, [-1]), axis=0)
    return ge.Reshape(ge.StridedSliceV2(line, [0], pack([count]), [0], [1]), sizes)
