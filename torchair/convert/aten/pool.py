"""ATen pooling and resampling. The one-dimensional forms are taken apart by torch itself."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import FLOAT, INT32, INT64, cast, shape_of, sizes, static_sizes
from torchair.convert.registry import converter
from torchair.core import dtypes
from torchair.ge.graph import Tensor
from torchair.ge.host import is_symbol

aten = torch.ops.aten


def each(values, count):
    """One number per spatial dim."""
    values = [values] if isinstance(values, int) else list(values)
    return values * count if len(values) == 1 else values


def batched(spatial, *tensors):
    """The tensors with a batch dim, and a function that takes it off the results."""
    if tensors[0].rank == spatial + 2:
        return tensors, lambda x: x
    return [ge.Unsqueeze(x, axes=[0]) for x in tensors], lambda x: ge.Squeeze(x, axis=[0])


def max_window(spatial, kernel_size, stride, padding, dilation, ceil_mode):
    """The attributes of a max pool: plain vectors over the spatial dims, INT64 indices."""
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
    """(maxima, their flat indices in the plane)."""
    (x,), restore = batched(2, self)
    made = ge.MaxPoolWithArgmaxV3(x, **max_window(2, kernel_size, stride, padding, dilation, ceil_mode))
    return [restore(result) for result in made]


@converter(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices
):
    """The gradient goes to the maxima."""
    tensors, restore = batched(2, self, grad_output, indices)
    window = max_window(2, kernel_size, stride, padding, dilation, ceil_mode)
    return restore(ge.MaxPoolGradWithArgmaxV3(*tensors, **window))


@converter(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """(maxima, their flat indices in the volume)."""
    (x,), restore = batched(3, self)
    made = ge.MaxPool3DWithArgmaxV2(x, **max_window(3, kernel_size, stride, padding, dilation, ceil_mode))
    return [restore(result) for result in made]


def average_window(spatial, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    """The attributes of an average pool: vectors over all dims, pads on both sides."""
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
    """Means of windows of a plane."""
    return average(
        ge.AvgPoolV2, 2, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@converter(aten.avg_pool3d.default)
def avg_pool3d(
    self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):
    """Means of windows of a volume."""
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
    """Each window's gradient spread over its elements."""
    window = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return average_gradient(ge.AvgPoolV2Grad, 2, self, grad_output, *window)


@converter(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(
    grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
):
    """Each window's gradient spread over its elements."""
    window = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return average_gradient(ge.AvgPool3DGrad, 3, self, grad_output, *window)


def average_gradient(make, spatial, x, grad, *window):
    (x, grad), restore = batched(spatial, x, grad)
    return restore(make(cast(shape_of(x), INT32), grad, **average_window(spatial, *window)))


def static_output(output_size):
    """GE's adaptive pools have their result size as an attribute."""
    if isinstance(output_size, Tensor):
        raise NotImplementedError("the result size is a symbol")
    return list(output_size)


@converter(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(self, output_size):
    """Means of windows that divide the plane into `output_size` parts."""
    (x,), restore = batched(2, self)
    return restore(ge.AdaptiveAvgPool2d(x, output_size=static_output(output_size)))


@converter(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(grad_output, self):
    """Each window's gradient spread over its elements."""
    (x, grad), restore = batched(2, self, grad_output)
    shape = static_sizes(x)
    if shape is None:
        raise NotImplementedError("the shape of the data is a symbol")
    return restore(ge.AdaptiveAvgPool2dGrad(grad, orig_input_shape=shape))


@converter(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(self, output_size):
    """(maxima of windows that divide the plane, their flat indices)."""
    (x,), restore = batched(2, self)
    values, indices = ge.AdaptiveMaxPool2d(x, output_size=static_output(output_size))
    return restore(values), restore(cast(indices, INT64))


def check_scales(x, output_size, scales):
    """GE scales by input size / result size; a given scale must mean the same."""
    for dim, scale in enumerate(scales):
        if scale is None:
            continue
        size = sizes(x)[dim + 2]
        is_exact = (
            not is_symbol(size) and not isinstance(output_size, Tensor) and size * scale == output_size[dim]
        )
        if not is_exact and (isinstance(scale, Tensor) or scale != int(scale)):
            raise NotImplementedError("its scale is not the ratio of the sizes")


def in_float(x):
    """GE resamples float32; doubles stay."""
    return x if dtypes.to_torch(x.dtype) == torch.float64 else cast(x, FLOAT)


@converter(aten.upsample_nearest2d.default)
def upsample_nearest2d(self, output_size, scales_h=None, scales_w=None):
    """Each result is the element at floor(place * input size / result size)."""
    check_scales(self, output_size, (scales_h, scales_w))
    return ge.ResizeNearestNeighborV2(self, cast(output_size, INT32))


@converter(aten.upsample_nearest2d_backward.default)
def upsample_nearest2d_backward(grad_output, output_size, input_size, scales_h=None, scales_w=None):
    """Gradients of the results that came from an element, summed."""
    if isinstance(input_size, Tensor) or isinstance(output_size, Tensor):
        raise NotImplementedError("a size is a symbol")
    for size, wanted, scale in zip(input_size[2:], output_size, (scales_h, scales_w), strict=True):
        if scale is not None and size * scale != wanted:
            raise NotImplementedError("its scale is not the ratio of the sizes")
    made = ge.ResizeNearestNeighborV2Grad(in_float(grad_output), cast(input_size[2:], INT32))
    return cast(made, grad_output.dtype)


@converter(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(self, output_size, align_corners, scales_h=None, scales_w=None):
    """Linear interpolation between the four neighbours."""
    check_scales(self, output_size, (scales_h, scales_w))
    x, size = in_float(self), cast(output_size, INT32)
    made = ge.ResizeBilinearV2(
        x, size, align_corners=align_corners, half_pixel_centers=not align_corners, dtype=x.dtype
    )
    return cast(made, self.dtype)


_INTERPOLATION = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


def sampling(interpolation_mode, padding_mode, align_corners):
    """The attributes of the grid samplers."""
    return {
        "interpolation_mode": _INTERPOLATION[interpolation_mode],
        "padding_mode": _PADDING[padding_mode],
        "align_corners": align_corners,
    }


@converter(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    """Values of the data at the places of the grid."""
    make = ge.GridSampler2D if input.rank == 4 else ge.GridSampler3D
    made = make(in_float(input), in_float(grid), **sampling(interpolation_mode, padding_mode, align_corners))
    return cast(made, input.dtype)


@converter(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask, *, used
):
    """The gradients of data and grid."""
    make = ge.GridSampler2DGrad if input.rank == 4 else ge.GridSampler3DGrad
    operands = [in_float(x) for x in (grad_output, input, grid)]
    dx, dgrid = make(*operands, **sampling(interpolation_mode, padding_mode, align_corners))
    return cast(dx, input.dtype) if output_mask[0] else None, cast(dgrid, grid.dtype) if output_mask[
        1
    ] else None
