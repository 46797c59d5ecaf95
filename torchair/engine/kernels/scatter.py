"""Writing by index into a copy. No input is written here: codegen finds what can be done in place."""

from __future__ import annotations

import torch

from torchair.core.kernel_params import Int, Ints, Number
from torchair.engine.kernels.index import placed
from torchair.engine.kernels.shape import END, slice_end
from torchair.engine.registry import attribute_kernels, kernel

aten = torch.ops.aten


@kernel("IndexPutV2", pure=True)
def index_put(x, value, indexed_sizes: Ints, indexed_strides: Ints, indices, *, accumulate):
    """x[indices] = value, or += value. `indexed_sizes` has a 1 for every indexed dim."""
    return aten.index_put.default(x, placed(indices, indexed_sizes), value, accumulate)


@kernel("StridedSliceAssign", pure=True)
def strided_slice_assign(var, begin: Ints, end: Ints, strides: Ints, input_value, *, begin_mask, end_mask):
    """var[begin:end:strides] = input_value. A set mask bit means that the dim starts or ends at its bound."""
    windows = []
    for dim, (start, stop, step) in enumerate(zip(begin, end, strides, strict=True)):
        from_begin, to_end = begin_mask >> dim & 1, end_mask >> dim & 1
        if not (from_begin and to_end and step == 1):
            windows.append((dim, 0 if from_begin else start, slice_end(END if to_end else stop), step))
    return _write(var, windows, input_value)


def _write(x, windows, value):
    """Write `value` into a window of `x`: cut out the outer dims first, and put them back last."""
    if not windows:
        return value
    window, *inner = windows
    if inner:
        value = _write(aten.slice.Tensor(x, *window), inner, value)
    return torch.slice_scatter(x, value, *window)


@kernel("ScatterElements")
def scatter_elements(data, indices, updates, *, axis, reduction):
    """Write each update at its own position, with the axis replaced by the index: data = updates, +=
    or *=.
    """
    if reduction == "none":
        return torch.scatter(data, axis, indices, updates)
    if reduction == "add":
        return torch.scatter_add(data, axis, indices, updates)
    assert reduction == "mul", "reductions are none, add and mul"
    return torch.scatter_reduce(data, axis, indices, updates, "prod")


@kernel("InplaceIndexAdd", pure=True)
def index_add(var, indices, updates, alpha: Number, *, axis):
    """var[.., indices, ..] += alpha * updates along one axis."""
    return torch.index_add(var, axis, indices, updates, alpha=1 if alpha is None else alpha)


@kernel("MaskedScatter")
def masked_scatter(x, mask, updates):
    """Replace the elements where the mask is true by `updates`, in order."""
    return torch.masked_scatter(x, mask, updates)


@kernel("TensorScatterMax")
def tensor_scatter_max(input, indices, updates):
    """input[row of indices] = the larger of itself and the update."""
    return _reduced(input, indices, updates, "amax")


@kernel("TensorScatterMin")
def tensor_scatter_min(input, indices, updates):
    """input[row of indices] = the smaller of itself and the update."""
    return _reduced(input, indices, updates, "amin")


@kernel("TensorScatterUpdate")
def tensor_scatter_update(x, indices, updates):
    """x[row of indices] = the update."""
    return aten.index_put.default(x, list(indices.unbind(-1)), updates)


@kernel("TensorScatterAdd")
def tensor_scatter_add(x, indices, updates):
    """x[row of indices] += the update."""
    return aten.index_put.default(x, list(indices.unbind(-1)), updates, True)


@kernel("TensorScatterSub")
def tensor_scatter_sub(x, indices, updates):
    """x[row of indices] -= the update."""
    return tensor_scatter_add(x, indices, -updates)


@kernel("ScatterMul", pure=True)
def scatter_mul(var, indices, updates):
    """var[indices] *= updates along the first dim."""
    return _reduced(var, indices.unsqueeze(-1), updates, "prod")


def _reduced(x, indices, updates, how):
    """Reduce updates of slices at coordinate rows, which may repeat."""
    count = indices.shape[-1]
    line = x.flatten(0, count - 1)
    place = indices[..., 0]
    for dim in range(1, count):
        place = place * x.shape[dim] + indices[..., dim]
    updates = updates.reshape(-1, *x.shape[count:])
    place = place.reshape(-1, *[1] * (updates.ndim - 1)).expand(updates.shape)
    return torch.scatter_reduce(line, 0, place.long(), updates, how).reshape(x.shape)


@kernel("DenseBincount")
def dense_bincount(input, size: Int, weights, *, binary_output):
    """Sum the weights of every number from 0 to size - 1."""
    assert not binary_output, "numbers are counted, not only detected"
    return torch.scatter_add(weights.new_zeros(size), 0, input, weights)


@kernel("UnsortedSegmentSum")
def segment_sum(x, segment_ids, num_segments: Int, *, is_preprocessed):
    """Sum entries with the same segment number."""
    assert not is_preprocessed, "segments are not preprocessed"
    return torch.index_add(x.new_zeros(num_segments, *x.shape[1:]), 0, segment_ids, x)


def _segments(how, start):
    """Reduce entries with the same segment number; `start(dtype)` is the result of an empty segment."""

    def run(x, segment_ids, num_segments: Int):
        empty = x.new_full((num_segments, *x.shape[1:]), start(x.dtype))
        place = segment_ids.reshape(-1, *[1] * (x.ndim - 1)).expand(x.shape)
        return torch.scatter_reduce(empty, 0, place, x, how, include_self=False)

    return run


def _bounds(dtype):
    return torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)


for _name, _how, _start in (
    ("Prod", "prod", lambda dtype: 1),
    ("Max", "amax", lambda dtype: _bounds(dtype).min),
    ("Min", "amin", lambda dtype: _bounds(dtype).max),
):
    _reduce = kernel(f"UnsortedSegment{_name}")(_segments(_how, _start))
    attribute_kernels({f"UnsortedSegment{_name}D": _reduce})
