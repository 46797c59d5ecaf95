"""Convolutions. GE's pads may differ on the two sides of a dim, torch's may not: data is padded first."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.core.kernel_params import Ints
from torchair.engine.registry import kernel

aten = torch.ops.aten


def _spatial(values, data_format):
    """Return the part of an attribute for the spatial dims; data are in torch's order."""
    assert data_format in ("NCHW", "NCDHW"), "data are in torch's order"
    return list(values[2:])


def _sides(pads):
    """Return (begin, end) of each spatial dim."""
    return list(zip(pads[::2], pads[1::2], strict=True))


def _is_even(pads):
    return all(begin == end for begin, end in _sides(pads))


def _padded(x, pads):
    """Pad `x` by the attribute; torch lists the last dim first."""
    return F.pad(x, [side for pair in reversed(_sides(pads)) for side in pair])


def _cropped(x, pads):
    """Undo `_padded`."""
    return F.pad(x, [-side for pair in reversed(_sides(pads)) for side in pair])


@kernel("Conv2D", "Conv3D")
def conv(x, filter, bias, offset_w, *, strides, pads, dilations, groups, data_format):
    """Convolve with filters [out, in / groups, ...]."""
    assert offset_w is None, "offset_w is only for quantized weights"
    strides, dilations = _spatial(strides, data_format), _spatial(dilations, data_format)
    even = _is_even(pads)
    padding = pads[::2] if even else [0] * len(strides)
    x = x if even else _padded(x, pads)
    return aten.convolution(x, filter, bias, strides, padding, dilations, False, [0] * len(strides), groups)


@kernel("Conv2DTranspose", "Conv3DTranspose")
def conv_transpose(
    input_size: Ints,
    x,
    filter,
    bias,
    offset_w,
    *,
    strides,
    pads,
    dilations,
    groups,
    data_format,
    output_padding,
):
    """Convolve transposed with filters [in, out / groups, ...]; `input_size` is the result's shape."""
    assert offset_w is None, "offset_w is only for quantized weights"
    strides, dilations = _spatial(strides, data_format), _spatial(dilations, data_format)
    extra = _spatial(output_padding, data_format)
    even = _is_even(pads)
    padding = pads[::2] if even else [0] * len(strides)
    y = aten.convolution(x, filter, bias, strides, padding, dilations, True, extra, groups)
    return y if even else _cropped(y, pads)


def _gradient(dy, x, filter, mask, strides, pads, dilations, groups, data_format):
    assert _is_even(pads), "gradients are emitted with even pads"
    strides, dilations = _spatial(strides, data_format), _spatial(dilations, data_format)
    none = [0] * len(strides)
    return aten.convolution_backward(
        dy, x, filter, None, strides, pads[::2], dilations, False, none, groups, mask
    )


def _memory_format(filter):
    """Return channels last if the filters are; filters with an ambiguous order count as contiguous."""
    last = torch.channels_last if filter.ndim == 4 else torch.channels_last_3d
    is_last = filter.is_contiguous(memory_format=last) and not filter.is_contiguous()
    return last if is_last else torch.contiguous_format


@kernel("Conv2DBackpropInput", "Conv3DBackpropInput")
def conv_backprop_input(
    input_size: Ints, filter, out_backprop, *, strides, pads, dilations, groups, data_format
):
    """Return the gradient of the data, whose shape is `input_size`."""
    # Only shape and memory order of this tensor are read. It is dense, because a strided one would be copied.
    order = _memory_format(filter)
    shape_only = torch.empty(input_size, dtype=filter.dtype, device=filter.device, memory_format=order)
    mask = [True, False, False]
    return _gradient(out_backprop, shape_only, filter, mask, strides, pads, dilations, groups, data_format)[0]


@kernel("Conv2DBackpropFilter", "Conv3DBackpropFilter")
def conv_backprop_filter(
    x, filter_size: Ints, out_backprop, *, strides, pads, dilations, groups, data_format
):
    """Return the gradient of the filters, whose shape is `filter_size`; half precision returns float32."""
    shape_only = x.new_empty(filter_size)
    mask = [False, True, False]
    result = _gradient(out_backprop, x, shape_only, mask, strides, pads, dilations, groups, data_format)[1]
    return result if result.dtype == torch.float64 else result.float()
