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
    """(maxima, their flat indices in the plane)."""
    _in_order(data_format)
    y, argmax = aten.max_pool2d_with_indices(x, ksize, strides, pads, dilation, ceil_mode)
    return y, argmax.to(dtypes.to_torch(dtype))


@kernel("MaxPoolGradWithArgmaxV3")
def max_pool_2d_grad(x, grad, argmax, *, ksize, strides, pads, dtype, dilation, ceil_mode, data_format):
    """The gradient goes to the maxima."""
    _in_order(data_format)
    return aten.max_pool2d_with_indices_backward(
        grad, x, ksize, strides, pads, dilation, ceil_mode, argmax.long()
    )


@kernel("MaxPoolWithArgmaxV1")
def max_pool_2d_v1(x, *, ksize, strides, pads, dtype, dilation, ceil_mode):
    """(maxima, what its gradient needs: their flat indices, INT32). Vectors are [1, height, width, 1]."""
    window = [part[1:3] for part in (ksize, strides, pads, dilation)]
    y, argmax = aten.max_pool2d_with_indices(x, *window, ceil_mode)
    return y, argmax.int()


@kernel("MaxPoolGradWithArgmaxV1")
def max_pool_2d_v1_grad(x, grad, argmax, *, ksize, strides, pads, dtype, dilation, ceil_mode):
    """The gradient goes to the maxima that MaxPoolWithArgmaxV1 found."""
    window = [part[1:3] for part in (ksize, strides, pads, dilation)]
    return aten.max_pool2d_with_indices_backward(grad, x, *window, ceil_mode, argmax.long())


@kernel("MaxPool3DWithArgmaxV2")
def max_pool_3d(x, *, ksize, strides, pads, dilation, ceil_mode, data_format, dtype):
    """(maxima, their flat indices in the volume)."""
    _in_order(data_format)
    y, argmax = aten.max_pool3d_with_indices(x, ksize, strides, pads, dilation, ceil_mode)
    return y, argmax.to(dtypes.to_torch(dtype))


def _average_window(ksize, strides, pads, ceil_mode, include_pad, divisor_override, data_format):
    """GE's attributes as ATen's arguments."""
    _in_order(data_format)
    assert pads[::2] == pads[1::2], "average pools are emitted with even pads"
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
    """Means of windows; exclusive: padding is not counted. A divisor of 0 means the number of elements."""
    assert (padding_mode, global_pooling) == ("CALCULATED", False), "windows are emitted with explicit pads"
    window = _average_window(ksize, strides, pads, ceil_mode, not exclusive, divisor_override, data_format)
    return aten.avg_pool2d(x, *window)


@kernel("AvgPoolV2Grad")
def avg_pool_2d_grad(
    orig_input_shape: Ints, input_grad, *,
    ksize, strides, padding_mode, pads, data_format, global_pooling, ceil_mode, exclusive, divisor_override,
):  # fmt: skip
    """Each window's gradient spread over its elements."""
    assert (padding_mode, global_pooling) == ("CALCULATED", False), "windows are emitted with explicit pads"
    window = _average_window(ksize, strides, pads, ceil_mode, not exclusive, divisor_override, data_format)
    return aten.avg_pool2d_backward(input_grad, _shaped(input_grad, orig_input_shape), *window)


@kernel("AvgPool3D")
def avg_pool_3d(x, *, ksize, strides, pads, ceil_mode, count_include_pad, divisor_override, data_format):
    """Means of windows of a volume."""
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
    """Each window's gradient spread over its elements."""
    window = _average_window(
        ksize, strides, pads, ceil_mode, count_include_pad, divisor_override, data_format
    )
    return aten.avg_pool3d_backward(grads, _shaped(grads, orig_input_shape), *window)


def _shaped(like, shape):
    """A tensor of which only shape and dtype are read."""
    return like.new_empty(shape)


@kernel("AdaptiveAvgPool2d")
def adaptive_avg_pool_2d(x, *, output_size):
    """Means of windows that divide the plane into `output_size` parts."""
    return aten._adaptive_avg_pool2d(x, output_size)


@kernel("AdaptiveAvgPool2dGrad")
def adaptive_avg_pool_2d_grad(input_grad, *, orig_input_shape):
    """Each window's gradient spread over its elements."""
    return aten._adaptive_avg_pool2d_backward(input_grad, _shaped(input_grad, orig_input_shape))


@kernel("AdaptiveMaxPool2d")
def adaptive_max_pool_2d(x, *, output_size):
    """(maxima of windows that divide the plane, their flat indices)."""
    y, argmax = aten.adaptive_max_pool2d(x, output_size)
    return y, argmax.to(torch.int32)
