"""Pooling of data in torch's order: [batch, channels, spatial dims]."""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.core.kernel_params import Ints
from torchair.engine.registry import kernel

aten = torch.ops.aten


def _in_order(data_format):
    assert data_format in ("NCHW", "NCDHW"), "data are in torch's order"


@kernel("MaxPoolWithArgmaxV3")
def max_pool_2d(x, *, ksize, strides, pads, dtype, dilation, ceil_mode, data_format):
    """Return (maxima, their flat indices in the plane)."""
    _in_order(data_format)
    y, argmax = aten.max_pool2d_with_indices(x, ksize, strides, pads, dilation, ceil_mode)
    return y, argmax.to(dtypes.to_torch(dtype))


@kernel("MaxPoolGradWithArgmaxV3")
def max_pool_2d_grad(x, grad, argmax, *, ksize, strides, pads, dtype, dilation, ceil_mode, data_format):
    """Pass the gradient to the maxima."""
    _in_order(data_format)
    return aten.max_pool2d_with_indices_backward(
        grad, x, ksize, strides, pads, dilation, ceil_mode, argmax.long()
    )


@kernel("MaxPoolWithArgmaxV1")
def max_pool_2d_v1(x, *, ksize, strides, pads, dtype, dilation, ceil_mode):
    """Return (maxima, their flat indices, INT32, for the gradient). Vectors are [1, height, width, 1]."""
    window = [part[1:3] for part in (ksize, strides, pads, dilation)]
    y, argmax = aten.max_pool2d_with_indices(x, *window, ceil_mode)
    return y, argmax.int()


@kernel("MaxPoolGradWithArgmaxV1")
def max_pool_2d_v1_grad(x, grad, argmax, *, ksize, strides, pads, dtype, dilation, ceil_mode):
    """Pass the gradient to the maxima that MaxPoolWithArgmaxV1 found."""
    window = [part[1:3] for part in (ksize, strides, pads, dilation)]
    return aten.max_pool2d_with_indices_backward(grad, x, *window, ceil_mode, argmax.long())


@kernel("MaxPool3DWithArgmaxV2")
def max_pool_3d(x, *, ksize, strides, pads, dilation, ceil_mode, data_format, dtype):
    """Return (maxima, their flat indices in the volume)."""
    _in_order(data_format)
    y, argmax = aten.max_pool3d_with_indices(x, ksize, strides, pads, dilation, ceil_mode)
    return y, argmax.to(dtypes.to_torch(dtype))


def _average_window(ksize, strides, pads, ceil_mode, include_pad, divisor_override, data_format):
    """Return GE's attributes as ATen's arguments."""
    _in_order(data_format)
    assert pads[::2] == pads[1::2], "torchair emits average pools with even pads only"
    return ksize[2:], strides[2:], pads[::2], ceil_mode, include_pad, divisor_override or None


@kernel("AvgPoolV2")
def avg_pool_2d(
    x,
    *,
    ksize,
    strides,
    padding_mode,
    pads,
    data_format,
    global_pooling,
    ceil_mode,
    exclusive,
    divisor_override,
):
    """Return the means of windows; exclusive: padding is not counted. A divisor of 0 means the number of
    elements.
    """
    assert (padding_mode, global_pooling) == ("CALCULATED", False), (
        "torchair emits windows with explicit pads only"
    )
    window = _average_window(ksize, strides, pads, ceil_mode, not exclusive, divisor_override, data_format)
    return aten.avg_pool2d(x, *window)


@kernel("AvgPoolV2Grad")
def avg_pool_2d_grad(
    orig_input_shape: Ints, input_grad, *,
    ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, exclusive, divisor_override,
):  # fmt: skip
    """Distribute each window's gradient over its elements."""
    assert (padding_mode, global_pooling) == ("CALCULATED", False), (
        "torchair emits windows with explicit pads only"
    )
    window = _average_window(ksize, strides, pads, ceil_mode, not exclusive, divisor_override, data_format)
    return aten.avg_pool2d_backward(input_grad, _shaped(input_grad, orig_input_shape), *window)


@kernel("AvgPool3D")
def avg_pool_3d(x, *, ksize, strides, pads, ceil_mode, count_include_pad, divisor_override, data_format):
    """Return means of windows of a volume."""
    return aten.avg_pool3d(
        x, *_average_window(ksize, strides, pads, ceil_mode, count_include_pad, divisor_override, data_format)
    )


@kernel("AvgPool3DGrad")
def avg_pool_3d_grad(
    orig_input_shape: Ints,
    grads,
    *,
    ksize,
    strides,
    pads,
    ceil_mode,
    count_include_pad,
    divisor_override,
    data_format,
):
    """Distribute each window's gradient over its elements."""
    window = _average_window(
        ksize, strides, pads, ceil_mode, count_include_pad, divisor_override, data_format
    )
    return aten.avg_pool3d_backward(grads, _shaped(grads, orig_input_shape), *window)


def _shaped(like, shape):
    """Return a tensor of which only shape and dtype are read."""
    return like.new_empty(shape)


@kernel("AdaptiveAvgPool2d")
def adaptive_avg_pool_2d(x, *, output_size):
    """Return means of windows that divide the plane into `output_size` parts."""
    return aten._adaptive_avg_pool2d(x, output_size)


@kernel("AdaptiveAvgPool2dGrad")
def adaptive_avg_pool_2d_grad(input_grad, *, orig_input_shape):
    """Distribute each window's gradient over its elements."""
    return aten._adaptive_avg_pool2d_backward(input_grad, _shaped(input_grad, orig_input_shape))


@kernel("AdaptiveMaxPool2d")
def adaptive_max_pool_2d(x, *, output_size):
    """Return (maxima of windows that divide the plane, their flat indices)."""
    y, argmax = aten.adaptive_max_pool2d(x, output_size)
    return y, argmax.to(torch.int32)
