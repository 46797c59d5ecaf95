"""Decompose ops that torch itself does not decompose.

Each entry is a definition in torch; its parts are converted in its place.
"""

from __future__ import annotations

import math

import torch

from torchair.convert.base.registry import opaque, register_decomposition
from torchair.core.torch_private.operators.schemas import find_overload

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_MEAN = 1  # of a loss: the value of `reduction` for the mean


# Products of narrow types


def wide_product(x, y, out_dtype):
    """Multiply with a result type that is wider than that of the operands."""
    return x.to(out_dtype) @ y.to(out_dtype)


def int8_weight_product(x, weight, scales):
    """Return x @ weight.T with 8-bit weights and a scale per row."""
    return (x @ weight.to(x.dtype).t()) * scales


# Fake quantization for training


def _quantised(x, scale, zero_point, quant_min, quant_max):
    at = (x * (1.0 / scale)).round() + zero_point
    inside = (at >= quant_min) & (at <= quant_max)
    at = torch.where(at != at, quant_min, at)  # a NaN becomes the least number
    return ((at.clamp(quant_min, quant_max) - zero_point) * scale).to(x.dtype), inside


def fake_quantize_channels(x, scale, zero_point, axis, quant_min, quant_max):
    """Quantize each slice along the axis with its own scale."""
    sizes = [-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())]
    return _quantised(x, scale.reshape(sizes), zero_point.reshape(sizes), quant_min, quant_max)


def fake_quantize_if(x, scale, zero_point, enabled, quant_min, quant_max):
    """Quantize with scale, zero point and an enable flag that are data."""
    result, inside = _quantised(x, scale, zero_point, quant_min, quant_max)
    is_on = enabled.reshape(()) == 1
    return torch.where(is_on, result, x), torch.where(is_on, inside, torch.ones_like(inside))


# Masked softmax


def masked_softmax(x, mask, dim=None, mask_type=None):
    """Compute softmax with weight 0 where the mask is true."""
    if mask_type == 0:
        mask = mask.expand(x.shape)
    elif mask_type == 1:
        mask = mask.reshape(mask.shape[0], *(1,) * (x.dim() - 2), mask.shape[1]).expand(x.shape)
    return torch.softmax(x.masked_fill(mask, -math.inf), x.dim() - 1 if dim is None else dim)


def masked_softmax_backward(grad, output, mask, dim=None):
    """Return the gradient of masked softmax."""
    dim = output.dim() - 1 if dim is None else dim
    grad, weights = grad.masked_fill(mask, 0.0), output.masked_fill(mask, 0.0)
    return (weights * (grad - (grad * weights).sum(dim, keepdim=True))).masked_fill(mask, 0.0)


# Sequences of different lengths


def jagged_to_padded(values, offsets, max_lengths, padding_value=0.0):
    """Return concatenated sequences as separate rows, padded to one length."""
    starts, ends = _bounds(offsets)
    at = starts.unsqueeze(1) + torch.arange(max_lengths[0], device=values.device)
    padding = values.new_full((1, *values.shape[1:]), padding_value)
    at = torch.where(at < ends.unsqueeze(1), at, values.shape[0])
    rows = torch.cat([values, padding]).index_select(0, at.reshape(-1))
    return rows.reshape(starts.shape[0], max_lengths[0], *values.shape[1:])


def padded_to_jagged(dense, offsets, total_L=None):
    """Concatenate the rows of padded sequences; elements without room in a row are zero."""
    if total_L is None:
        raise NotImplementedError("the total length of the sequences depends on data")
    starts, ends = _bounds(offsets)
    length = dense.shape[1]
    at = torch.arange(total_L, device=dense.device)
    row = torch.searchsorted(ends, at, right=True)
    column = at - starts.index_select(0, row)
    is_there = (column < length).reshape(-1, *(1,) * (dense.dim() - 2))
    flat = dense.reshape(-1, *dense.shape[2:])
    result = flat.index_select(0, row * length + column.clamp(max=length - 1))
    return torch.where(is_there, result, 0).to(dense.dtype)


def _bounds(offsets):
    """Return where each sequence starts and ends."""
    if len(offsets) != 1:
        raise NotImplementedError("nested sequences are not supported")
    numbers = offsets[0].to(torch.int64)
    return numbers[:-1], numbers[1:]


# Ranges and windows


def inclusive_range(start, end, step=1, *, dtype=None, layout=None, device=None, pin_memory=None):
    """Return start, start + step, … up to and including the end, if it is reached."""
    count = int((end - start) / step) + 1
    wanted = dtype or torch.get_default_dtype()
    return (start + torch.arange(count, dtype=torch.float64, device=device) * step).to(wanted)


def _window(formula):
    """Create a window over the given number of points.

    A periodic window is the longer symmetric one without its last point.
    """

    def run(length, periodic=True, *args, dtype=None, layout=None, device=None, pin_memory=None):
        wanted = dtype or torch.get_default_dtype()
        if length <= 1:
            return torch.ones(length, dtype=wanted, device=device)
        last = length if periodic else length - 1
        points = torch.arange(length, dtype=torch.float64, device=device)
        return formula(points, last, *args).to(wanted)

    return run


def _turns(points, last, times=1):
    return torch.cos(points * (2.0 * math.pi * times / last))


def hamming(points, last, alpha=0.54, beta=0.46):
    """Return alpha - beta cos."""
    return alpha - beta * _turns(points, last)


def blackman(points, last):
    """Return the window with two cosines."""
    return 0.42 - 0.5 * _turns(points, last) + 0.08 * _turns(points, last, 2)


def bartlett(points, last):
    """Return the triangular window."""
    return 1.0 - (points * (2.0 / last) - 1.0).abs()


def kaiser(points, last, beta=12.0):
    """Return the window with Bessel functions."""
    inside = 1.0 - (points * (2.0 / last) - 1.0) ** 2
    top = torch.special.i0(beta * inside.clamp(min=0.0).sqrt())
    return top / torch.special.i0(torch.full_like(points, beta))


# Cells, convolutions, gradients


def lstm_cell(input_gates, hidden_gates, cell, input_bias=None, hidden_bias=None):
    """Return the new hidden state, the new cell, and the activated gates of one step."""
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    let_in, keep, new, out = gates.chunk(4, -1)
    let_in, keep, new, out = let_in.sigmoid(), keep.sigmoid(), new.tanh(), out.sigmoid()
    state = keep * cell + let_in * new
    return out * state.tanh(), state, torch.cat([let_in, keep, new, out], -1)


def time_convolution(x, weight, bias, pad=0):
    """Convolve (time, batch, channels) with a kernel of (width, in, out)."""
    result = torch.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return result.permute(2, 0, 1)


def weight_norm_backward(grad, v, g, norms, dim):
    """Return the gradients of direction and length."""
    over = [d for d in range(v.dim()) if d != dim % v.dim()]
    along = (grad * v).sum(over, keepdim=True) / norms
    grad_v = (g / norms) * (grad - v * (along / norms))
    return grad_v.to(v.dtype), along.reshape(g.shape).to(g.dtype)


def smooth_l1_backward(grad, x, target, reduction, beta):
    """Return the gradient of x. torch's own formula uses a sign instead of comparing, and a NaN has
    sign 0.
    """
    results = [part.float() if part.dtype in _HALVES else part for part in (grad, x - target)]
    norm = 1.0 / x.numel() if reduction == _MEAN else 1.0
    grad, apart = results[0] * norm, results[1]
    inside = torch.where(apart >= beta, grad, apart * grad / beta)
    return torch.where(apart <= -beta, -grad, inside).to(x.dtype)


def logit_backward(grad, x, eps=None):
    """Return the gradient of logit. torch's own formula treats a NaN as a number outside the range."""
    low, high = (0.0, 1.0) if eps is None or eps < 0 else (eps, 1.0 - eps)
    outside = math.nan if eps is None or eps < 0 else 0.0
    wide = x.float() if x.dtype in _HALVES else x
    inside = grad / (wide * (1.0 - wide))
    return torch.where((wide < low) | (wide > high), outside, inside).to(x.dtype)


def extremes(x, dim=None, keepdim=False):
    """Return the minimum and the maximum."""
    if dim is None:
        return x.amin(), x.amax()
    return x.amin(dim, keepdim), x.amax(dim, keepdim)


PARTS = {
    "mm.dtype": wide_product,
    "bmm.dtype": wide_product,
    "_int_mm.default": lambda x, y: wide_product(x, y, torch.int32),
    "_weight_int8pack_mm.default": int8_weight_product,
    "fake_quantize_per_tensor_affine_cachemask.default": _quantised,
    "fake_quantize_per_channel_affine_cachemask.default": fake_quantize_channels,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": fake_quantize_if,
    "_masked_softmax.default": masked_softmax,
    "_masked_softmax_backward.default": masked_softmax_backward,
    "_jagged_to_padded_dense_forward.default": jagged_to_padded,
    "_padded_dense_to_jagged_forward.default": padded_to_jagged,
    "range.default": inclusive_range,
    "range.step": inclusive_range,
    **{f"hamming_window.{name}": _window(hamming)
       for name in ("default", "periodic", "periodic_alpha", "periodic_alpha_beta")},
    **{f"blackman_window.{name}": _window(blackman) for name in ("default", "periodic")},
    **{f"bartlett_window.{name}": _window(bartlett) for name in ("default", "periodic")},
    **{f"kaiser_window.{name}": _window(kaiser) for name in ("default", "periodic", "beta")},
    "_thnn_fused_lstm_cell.default": lstm_cell,
    "conv_tbc.default": time_convolution,
    "_weight_norm_interface_backward.default": weight_norm_backward,
    "logit_backward.default": logit_backward,
    "smooth_l1_loss_backward.default": smooth_l1_backward,
    "_aminmax.default": extremes,
    "_aminmax.dim": extremes,
    "_add_relu.Tensor": lambda x, other, alpha=1: torch.add(x, other, alpha=alpha).relu(),
    "_is_any_true.default": torch.any,
    "_is_all_true.default": torch.all,
}  # fmt: skip

_SPARSE = "sparse tensors do not exist in the IR"
_CHUNKED = "it computes loss and gradients in chunks to save memory; its decomposition would not"
opaque({
    aten._to_sparse.default: _SPARSE,
    aten._to_sparse.sparse_dim: _SPARSE,
    aten._to_dense.default: _SPARSE,
    "torch_nn._linear_cross_entropy_batch_chunked.default": _CHUNKED,
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default": _CHUNKED,
})  # fmt: skip

for _name, _fn in PARTS.items():
    _overload = find_overload(f"aten.{_name}")
    if _overload is not None:  # older versions of torch have fewer of these ops
        register_decomposition(_overload)(_fn)
