"""ATen pooling. torch itself decomposes the one-dimensional forms.

GE has no adaptive pools of volumes, none with a symbolic result size and no fractional ones. Their windows
are gathered first: for means along one dim after the other, for maxima all together.
"""

from __future__ import annotations

import functools
import math

import torch

from torchair import ge
from torchair.convert.aten.index import along, counted, product
from torchair.convert.base.operands import (
    FLOAT,
    INT32,
    INT64,
    cast,
    like,
    pack,
    shape_of,
    size_of,
    sizes,
    static_sizes,
    torch_dtype,
)
from torchair.convert.base.registry import converter
from torchair.ge.graph import Tensor

aten = torch.ops.aten


def each(values, count):
    """Return one number per spatial dim."""
    values = [values] if isinstance(values, int) else list(values)
    return values * count if len(values) == 1 else values


def batched(spatial, *tensors):
    """Add a batch dim to the tensors; return them and a function that removes it from the results."""
    if tensors[0].rank == spatial + 2:
        return tensors, lambda x: x
    return [ge.Unsqueeze(x, axes=[0]) for x in tensors], lambda x: ge.Squeeze(x, axis=[0])


def max_window(spatial, kernel_size, stride, padding, dilation, ceil_mode):
    """Return the attributes of a max pool: plain vectors over the spatial dims, INT64 indices."""
    return {
        "ksize": each(kernel_size, spatial),
        "strides": each(stride or kernel_size, spatial),
        "pads": each(padding, spatial),
        "dilation": each(dilation, spatial),
        "ceil_mode": ceil_mode,
        "dtype": INT64,
    }


@converter(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """Return (maxima, their flat indices in the plane)."""
    (x,), restore = batched(2, self)
    made = ge.MaxPoolWithArgmaxV3(x, **max_window(2, kernel_size, stride, padding, dilation, ceil_mode))
    return [restore(result) for result in made]


@converter(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices
):
    """Pass the gradient to the maxima."""
    tensors, restore = batched(2, self, grad_output, indices)
    window = max_window(2, kernel_size, stride, padding, dilation, ceil_mode)
    return restore(ge.MaxPoolGradWithArgmaxV3(*tensors, **window))


@converter(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """Return (maxima, their flat indices in the volume)."""
    (x,), restore = batched(3, self)
    made = ge.MaxPool3DWithArgmaxV2(x, **max_window(3, kernel_size, stride, padding, dilation, ceil_mode))
    return [restore(result) for result in made]


def average_window(spatial, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    """Return the attributes of an average pool: vectors over all dims, pads on both sides."""
    padding_counts = (
        {"exclusive": not count_include_pad, "data_format": "NCHW"}
        if spatial == 2
        else {"count_include_pad": count_include_pad, "data_format": "NCDHW"}
    )
    return {
        "ksize": [1, 1, *each(kernel_size, spatial)],
        "strides": [1, 1, *each(stride or kernel_size, spatial)],
        "pads": [pad for pad in each(padding, spatial) for _ in range(2)],
        "ceil_mode": ceil_mode,
        "divisor_override": divisor_override or 0,
        **padding_counts,
    }


@converter(aten.avg_pool2d.default)
def avg_pool2d(
    self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):
    """Return means of windows of a plane."""
    return average(
        ge.AvgPoolV2, 2, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@converter(aten.avg_pool3d.default)
def avg_pool3d(
    self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):
    """Return means of windows of a volume."""
    return average(
        ge.AvgPool3D, 3, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def average(make, spatial, x, *window):
    (x,), restore = batched(spatial, x)
    return restore(make(x, **average_window(spatial, *window)))


@converter(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
):
    """Distribute each window's gradient over its elements."""
    window = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return average_gradient(ge.AvgPoolV2Grad, 2, self, grad_output, *window)


@converter(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(
    grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
):
    """Distribute each window's gradient over its elements."""
    window = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return average_gradient(ge.AvgPool3DGrad, 3, self, grad_output, *window)


def average_gradient(make, spatial, x, grad, *window):
    (x, grad), restore = batched(spatial, x, grad)
    return restore(make(cast(shape_of(x), INT32), grad, **average_window(spatial, *window)))


def wanted_sizes(output_size, spatial):
    """Return the result size of every spatial dim: ints, or numbers of the graph."""
    if not isinstance(output_size, Tensor):
        return each(output_size, spatial)
    return [ge.Gather(output_size, cast(dim, INT64)) for dim in range(spatial)]


def is_static(numbers):
    """Return whether all of them are ints."""
    return all(isinstance(number, int) for number in numbers)


def spans(size, parts):
    """Return (start, end) of the windows that divide a dim, a column each."""
    if isinstance(size, int) and isinstance(parts, int):
        first = torch.arange(parts) * size // parts
        last = ((torch.arange(parts) + 1) * size + parts - 1) // parts
        return ge.Const(first[:, None]), ge.Const(last[:, None])
    size, parts, one = cast(size, INT64), cast(parts, INT64), cast(1, INT64)
    place = ge.Unsqueeze(counted(parts), axes=[1])
    last = ge.Add(ge.Mul(ge.Add(place, one), size), ge.Sub(parts, one))
    return ge.FloorDiv(ge.Mul(place, size), parts), ge.FloorDiv(last, parts)


def window_sums(x, dim, parts):
    """Return (sums over windows that divide a dim, their lengths).

    A product with a matrix of zeros and ones does not work: a window must not read infinite values outside
    it.
    """
    size, rest = size_of(x, dim), list(range(2, 1 + x.rank - dim))
    first, last = spans(size, parts)
    place = ge.Add(first, ge.Unsqueeze(counted(longest(size, parts)), axes=[0]))
    windows = ge.GatherV2(x, ge.Minimum(place, ge.Sub(last, cast(1, INT64))), [dim])
    inside = ge.Unsqueeze(ge.Less(place, last), axes=rest) if rest else ge.Less(place, last)
    sums = ge.ReduceSum(ge.SelectV2(inside, windows, cast(0, x.dtype)), [dim + 1], keep_dims=False)
    return sums, lengths(first, last, x, dim)


def lengths(first, last, x, dim):
    """Return the lengths of windows of a dim, in the dtype of `x`."""
    return along(cast(ge.Sub(last, first), x.dtype), dim, x.rank)


def adaptive_mean(spatial, self, output_size):
    """Return means of windows that divide all spatial dims."""
    x, first = wide(self), self.rank - spatial
    for place, parts in enumerate(wanted_sizes(output_size, spatial)):
        x = ge.Div(*window_sums(x, first + place, parts))
    return cast(x, self.dtype)


def adaptive_mean_gradient(spatial, grad_output, self):
    """Distribute each window's gradient over its elements.

    The windows that contain an element are those that it would have if the elements divided a dim of the
    windows.
    """
    x, first = wide(grad_output), self.rank - spatial
    for dim in range(first, self.rank):
        windows = spans(size_of(self, dim), size_of(grad_output, dim))
        x, _ = window_sums(ge.Div(x, lengths(*windows, x, dim)), dim, size_of(self, dim))
    return cast(x, grad_output.dtype)


def wide(x):
    """Cast to at least float32."""
    return cast(x, FLOAT) if torch_dtype(x) in (torch.float16, torch.bfloat16) else x


@converter(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(self, output_size):
    """Return means of windows that divide the plane into `output_size` parts."""
    if isinstance(output_size, Tensor):
        return adaptive_mean(2, self, output_size)
    (x,), restore = batched(2, self)
    return restore(ge.AdaptiveAvgPool2d(x, output_size=list(output_size)))


@converter(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(grad_output, self):
    """Distribute each window's gradient over its elements."""
    (x, grad), restore = batched(2, self, grad_output)
    shape = static_sizes(x)
    if shape is None:
        return adaptive_mean_gradient(2, grad_output, self)
    return restore(ge.AdaptiveAvgPool2dGrad(grad, orig_input_shape=shape))


def even_windows(self, wanted):
    """Return the size of the windows if all are equal and known, else None."""
    have = sizes(self)[self.rank - len(wanted) :]
    if not is_static(have) or not is_static(wanted) or any(part == 0 for part in wanted):
        return None
    divides = all(size and size % part == 0 for size, part in zip(have, wanted, strict=True))
    return [size // part for size, part in zip(have, wanted, strict=True)] if divides else None


@converter(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(self, output_size):
    """Return means of windows that divide the volume into `output_size` parts."""
    window = even_windows(self, wanted_sizes(output_size, 3))
    if window is None:
        return adaptive_mean(3, self, output_size)
    return cast(average(ge.AvgPool3D, 3, wide(self), window, window, 0, False, True, None), self.dtype)


@converter(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(grad_output, self):
    """Distribute each window's gradient over its elements."""
    return adaptive_mean_gradient(3, grad_output, self)


def largest_of(windows, places):
    """Return (maxima, their places) of windows in the last dim."""
    best, values = ge.ArgMaxWithValue(windows, dimension=windows.rank - 1)
    best = ge.Unsqueeze(cast(best, INT64), axes=[best.rank])
    return values, ge.Squeeze(ge.GatherElements(places, best, dim=places.rank - 1), axis=[places.rank - 1])


def window_maxima(x, places, output, count):
    """Return (maxima, flat indices); `places` holds the flat indices of the elements of all windows."""
    lead = [size_of(x, 0), size_of(x, 1)]
    line = ge.Reshape(x, pack([*lead, -1]))
    picked = ge.GatherElements(line, ge.Reshape(places, pack([*lead, -1])), dim=2)
    windows, places = (ge.Reshape(part, pack([*lead, *output, count])) for part in (picked, places))
    return largest_of(windows, places)


def flat_windows(starts, ends, sizes_, reach):
    """Return the flat indices of the elements of all windows: [N, C, windows per dim, elements per dim].

    `starts` has the first element of the windows of each dim as [N or 1, C or 1, windows]. A window has
    `reach` elements; those after its end repeat its last one.
    """
    spatial = len(starts)
    rank, flat = 2 + 2 * spatial, None
    for dim in range(spatial):
        lead = [size_of(starts[dim], 0), size_of(starts[dim], 1)]
        shape = [*lead, *[-1 if place == dim else 1 for place in range(2 * spatial)]]
        place = ge.Add(
            ge.Reshape(starts[dim], pack(shape)), along(counted(reach[dim]), 2 + spatial + dim, rank)
        )
        if ends is not None:
            last = ge.Sub(ge.Reshape(ends[dim], pack(shape)), cast(1, INT64))
            place = ge.Minimum(place, last)
        flat = place if flat is None else ge.Add(ge.Mul(flat, cast(sizes_[dim], INT64)), place)
    return flat


def adaptive_maxima(spatial, self, output_size):
    """Return (maxima of windows that divide the spatial dims, their flat indices)."""
    (x,), restore = batched(spatial, self)
    output = wanted_sizes(output_size, spatial)
    have = [size_of(x, 2 + dim) for dim in range(spatial)]
    pairs = [spans(size, parts) for size, parts in zip(have, output, strict=True)]
    starts, ends = ([ge.Reshape(part, [1, 1, -1]) for part in parts] for parts in zip(*pairs, strict=True))
    reach = [longest(size, parts) for size, parts in zip(have, output, strict=True)]
    count = functools.reduce(product, reach, 1)
    flat = flat_windows(starts, ends, have, reach)
    whole = pack([size_of(x, 0), size_of(x, 1), *output, *reach])
    made = window_maxima(x, ge.BroadcastTo(flat, whole), output, count)
    return [restore(part) for part in made]


def longest(size, parts):
    """Return the maximum number of elements of the windows that divide a dim into `parts`."""
    if isinstance(size, int) and isinstance(parts, int):
        place = torch.arange(max(parts, 1))
        return int((((place + 1) * size + parts - 1) // max(parts, 1) - place * size // max(parts, 1)).max())
    size, parts = cast(size, INT64), cast(parts, INT64)
    return ge.Add(ge.FloorDiv(ge.Add(size, ge.Sub(parts, cast(1, INT64))), parts), cast(1, INT64))


@converter(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(self, output_size):
    """Return (maxima of windows that divide the plane, their flat indices)."""
    if isinstance(output_size, Tensor):
        return adaptive_maxima(2, self, output_size)
    (x,), restore = batched(2, self)
    values, indices = ge.AdaptiveMaxPool2d(x, output_size=list(output_size))
    return restore(values), restore(cast(indices, INT64))


@converter(aten.adaptive_max_pool3d.default)
def adaptive_max_pool3d(self, output_size):
    """Return (maxima of windows that divide the volume, their flat indices)."""
    window = even_windows(self, wanted_sizes(output_size, 3))
    if window is None:
        return adaptive_maxima(3, self, output_size)
    return max_pool3d_with_indices(self, window)


def fractional_starts(samples, size, parts, reach):
    """Return where the windows of a dim start, from one random number per plane; the last ends with
    the dim.
    """
    rest = size - reach if isinstance(size, int) else ge.Sub(size, cast(reach, INT64))
    last = ge.Reshape(cast(rest, INT64), [1, 1, 1])
    shape = [size_of(samples, 0), size_of(samples, 1), 1]
    last = ge.BroadcastTo(last, pack(shape))
    if parts == 1:
        return last
    step = ge.Div(cast(rest, samples.dtype), like(parts - 1, samples))
    places = cast(along(counted(parts - 1), 2, 3), samples.dtype)
    samples = ge.Unsqueeze(samples, axes=[2])
    first = cast(ge.Mul(ge.Add(places, samples), step), INT64)
    return ge.ConcatV2([ge.Sub(first, cast(ge.Mul(samples, step), INT64)), last], 2, N=2)


def fractional(spatial, self, kernel_size, output_size, random_samples, order):
    """Return (maxima, flat indices) of randomly placed windows; `order` is the dim of each random number."""
    (x,), restore = batched(spatial, self)
    reach, output = each(kernel_size, spatial), each(output_size, spatial)
    samples = ge.Unpack(random_samples, num=spatial, axis=2, outputs=spatial)
    have = [size_of(x, 2 + dim) for dim in range(spatial)]
    starts = [
        fractional_starts(samples[order[dim]], have[dim], output[dim], reach[dim]) for dim in range(spatial)
    ]
    flat = flat_windows(starts, None, have, reach)
    return [restore(part) for part in window_maxima(x, flat, output, math.prod(reach))]


@converter(aten.fractional_max_pool2d.default)
def fractional_max_pool2d(self, kernel_size, output_size, random_samples):
    """Pool with the first random number of a plane for its width."""
    return fractional(2, self, kernel_size, output_size, random_samples, (1, 0))


@converter(aten.fractional_max_pool3d.default)
def fractional_max_pool3d(self, kernel_size, output_size, random_samples):
    """Pool with the random numbers of a volume in the order of its dims."""
    return fractional(3, self, kernel_size, output_size, random_samples, (0, 1, 2))


def to_maxima(spatial, grad_output, self, indices):
    """Add every gradient at the position of its maximum."""
    lead = [size_of(self, dim) for dim in range(self.rank - spatial)]
    total = functools.reduce(product, [size_of(self, dim) for dim in range(len(lead), self.rank)], 1)
    zeros = ge.Fill(pack([*lead, total]), like(0, grad_output))
    line, places = (ge.Reshape(part, pack([*lead, -1])) for part in (grad_output, cast(indices, INT64)))
    made = ge.ScatterElements(zeros, places, line, axis=len(lead), reduction="add")
    return ge.Reshape(made, shape_of(self))


@converter(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(grad_output, self, indices):
    """Pass the gradient to the maxima."""
    return to_maxima(2, grad_output, self, indices)


@converter(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(grad_output, self, indices):
    """Pass the gradient to the maxima."""
    return to_maxima(3, grad_output, self, indices)


@converter(aten.fractional_max_pool2d_backward.default)
def fractional_max_pool2d_backward(grad_output, self, kernel_size, output_size, indices):
    """Pass the gradient to the maxima."""
    return to_maxima(2, grad_output, self, indices)


@converter(aten.fractional_max_pool3d_backward.default)
def fractional_max_pool3d_backward(grad_output, self, kernel_size, output_size, indices):
    """Pass the gradient to the maxima."""
    return to_maxima(3, grad_output, self, indices)


@converter(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_with_indices_backward(
    grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices
):
    """Pass the gradient to the maxima."""
    return to_maxima(3, grad_output, self, indices)
