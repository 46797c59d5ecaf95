"""Compute RMSNorm and its fusions, group norm with SiLU, masked softmax, and combined batch statistics.

Statistics and arithmetic are float32 (double for doubles), independent of the data type.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.ops.npu.common.op_spec import InPlaceOp, NpuOp, fixed, made
from torchair.ops.numerics.formats import INT8, dynamic, ir_type, ir_type_or, mx, static, wide


def rms_norm(x, gamma, *, epsilon=1e-6):
    """Return (x · rstd · gamma, rstd), rstd = 1 / sqrt(mean(x²) + epsilon) over the dims of gamma."""
    normed, rstd = normalized(wide(x), gamma, epsilon)
    return normed.to(x.dtype), rstd


def normalized(x, gamma, epsilon):
    """Compute `rms_norm` in the dtype of the arithmetic."""
    dims = list(range(x.ndim - gamma.ndim, x.ndim))
    rstd = torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + epsilon)
    return x * rstd * wide(gamma), rstd


def rms_norm_grad(dy, x, rstd, gamma):
    """Return the gradients of x and gamma; that of gamma stays float32."""
    leading, dims = list(range(x.ndim - gamma.ndim)), list(range(x.ndim - gamma.ndim, x.ndim))
    normed, inner = wide(x) * rstd, wide(dy) * wide(gamma)
    dx = rstd * (inner - normed * (inner * normed).mean(dims, keepdim=True))
    dgamma = wide(dy) * normed
    return dx.to(x.dtype), dgamma.sum(leading) if leading else dgamma


def rms_norm_grad_quant(
    dy, x, rstd, gamma, scale_x, offset_x, *, div_mode=True, quant_mode="static", dst_type=INT8
):
    """Compute `rms_norm_grad` with dx quantized with a given scale."""
    assert quant_mode == "static", "the gradient is quantized with a given scale"
    dx, dgamma = rms_norm_grad(dy, wide(x), rstd, gamma)
    return static(dx, scale_x, offset_x, dst_type, divide=div_mode), dgamma


def added(x1, x2, gamma, beta, epsilon):
    """Return (normalized sum, rstd, sum in the dtype of x1), the first in the dtype of the arithmetic."""
    x = wide(x1) + wide(x2)
    y, rstd = normalized(x, gamma, epsilon)
    return y if beta is None else y + wide(beta), rstd, x.to(x1.dtype)


def add_rms_norm(x1, x2, gamma, *, epsilon=1e-6):
    """Return (RMSNorm of the sum, rstd, the sum); the sum is not rounded before it is normalized."""
    y, rstd, x = added(x1, x2, gamma, None, epsilon)
    return y.to(x1.dtype), rstd, x


def add_rms_norm_cast(x1, x2, gamma, *, epsilon=1e-6):
    """Compute `add_rms_norm` with the result in float32 and in the dtype of x1."""
    y, rstd, x = added(x1, x2, gamma, None, epsilon)
    return y.float(), y.to(x1.dtype), rstd, x


def add_rms_norm_dynamic_quant(
    x1, x2, gamma, smooth_scale1, smooth_scale2, beta, *, epsilon=1e-6, output_mask=(), dst_type=INT8
):
    """Quantize the RMSNorm of the sum, times one or two smooth scales, per row: (y1, y2, sum, scale1,
    scale2).

    A pair that is not requested is empty.
    """
    y, _, x = added(x1, x2, gamma, beta, epsilon)
    y = y.to(x1.dtype)
    wanted = list(output_mask) or [True, smooth_scale1 is not None and smooth_scale2 is not None]
    pairs = [
        _smoothed(y, smooth, dst_type) if want else _empty_pair(y, dst_type)
        for smooth, want in zip((smooth_scale1, smooth_scale2), wanted, strict=True)
    ]
    (y1, scale1), (y2, scale2) = pairs
    return y1, y2, x, scale1, scale2


def _smoothed(y, smooth, kind):
    return dynamic(wide(y) if smooth is None else wide(y) * wide(smooth), kind)


def _empty_pair(y, kind):
    stored, scale = dynamic(y.new_zeros(8), kind)
    return stored[:0], scale.reshape(1)[:0]


def add_rms_norm_dynamic_mx_quant(
    x1, x2, gamma, beta, *, epsilon=1e-6, scale_alg=0, round_mode="rint", dst_type=40, output_rstd=False
):
    """Quantize the RMSNorm of the sum in blocks of 32 with a shared power of two: (y, sum, scales, rstd)."""
    y, rstd, x = added(x1, x2, gamma, beta, epsilon)
    stored, scale = mx(y.to(x1.dtype), dst_type, scale_alg=scale_alg, mode=round_mode)
    return stored, x, scale, rstd if output_rstd else torch.zeros_like(rstd)


def rms_norm_dynamic_mx_quant(
    x, gamma, beta, *, epsilon=1e-6, scale_alg=0, round_mode="rint", dst_type=40, output_rstd=False
):
    """Quantize the RMSNorm in blocks of 32 with a shared power of two: (y, scales, rstd)."""
    y, rstd = normalized(wide(x), gamma, epsilon)
    y = (y if beta is None else y + wide(beta)).to(x.dtype)
    stored, scale = mx(y, dst_type, scale_alg=scale_alg, mode=round_mode)
    return stored, scale, rstd if output_rstd else torch.zeros_like(rstd)


def group_norm_silu(x, gamma, beta, *, num_groups, eps=1e-4):
    """Return (silu of the group norm, mean, rstd); statistics are [N, groups] in the dtype of gamma or x."""
    grouped = wide(x).reshape(x.shape[0], num_groups, -1)
    mean = grouped.mean(-1)
    rstd = torch.rsqrt(grouped.var(-1, correction=0) + eps)
    y = ((grouped - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)).reshape(x.shape)
    per_channel = (-1, *(1,) * (x.ndim - 2))
    y = y if gamma is None else y * wide(gamma).reshape(per_channel)
    y = y if beta is None else y + wide(beta).reshape(per_channel)
    result = x.dtype if gamma is None else gamma.dtype
    return F.silu(y).to(x.dtype), mean.to(result), rstd.to(result)


def masked_softmax_with_rel_pos_bias(
    x, atten_mask, relative_pos_bias, *, scale_value=1.0, inner_precision_mode=0
):
    """Return softmax of scale·x + mask + bias; x is [B, W, N, S1, S2] or [B·W, N, S1, S2], the
    mask per window.
    """
    scores = wide(x) * scale_value
    bias = wide(relative_pos_bias).reshape(-1, *x.shape[-2:])
    if atten_mask is not None:
        mask = wide(atten_mask).reshape(-1, 1, *x.shape[-2:])
        if x.ndim == 5:
            scores = scores + mask
        else:
            windows = scores.unflatten(0, (-1, mask.shape[0])) + mask
            scores = windows.flatten(0, 1)
    return torch.softmax(scores + bias, -1).to(x.dtype)


def gather_stats(total_sum, total_square_sum, sample_count, mean, variance, *, momentum=0.1, eps=1e-5):
    """Return (mean, 1/std, new running mean, new running variance) from sums over all ranks; the running
    variance is unbiased.
    """
    batch_mean = total_sum / sample_count
    batch_var = total_square_sum / sample_count - batch_mean.square()
    unbiased = batch_var * sample_count / (sample_count - 1).clamp(min=1)
    result = [old + momentum * (new - old) for old, new in ((mean, batch_mean), (variance, unbiased))]
    return batch_mean, torch.rsqrt(batch_var + eps), *result


def rank_sums(mean, invstd, counts, eps):
    """Return (sums, sums of squares, number of elements) over ranks with statistics [ranks, C]."""
    counts = wide(counts).reshape(-1, 1)
    square = 1 / wide(invstd).square() - eps + wide(mean).square()
    return (wide(mean) * counts).sum(0), (square * counts).sum(0), counts.sum(0)


def batch_norm_gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, counts):
    """Combine the statistics of all ranks: (mean, 1/std, new running mean, new running variance)."""
    sums = rank_sums(mean, invstd, counts, eps)
    running = [
        sums[0].new_full(sums[0].shape, start) if part is None else wide(part)
        for part, start in ((running_mean, 0.0), (running_var, 1.0))
    ]
    made = gather_stats(*sums, *running, momentum=momentum, eps=eps)
    kinds = [mean, mean, *(mean if part is None else part for part in (running_mean, running_var))]
    return tuple(part.to(kind.dtype) for part, kind in zip(made, kinds, strict=True))


def batch_norm_reduce(input, eps):
    """Return the sums and sums of squares of each channel, in float32."""
    dims = [0, *range(2, input.ndim)]
    return wide(input).sum(dims), wide(input).square().sum(dims)


_MX = {"dst_type": made(ir_type, "dst_type"), "output_rstd": fixed(False)}
ROWS = (
    NpuOp("npu_rms_norm", "RmsNorm", rms_norm, {"x": "self"}, shared=True),
    NpuOp("npu_rms_norm_backward", "RmsNormGrad", rms_norm_grad, {"x": "self"}, shared=True),
    NpuOp(
        "_npu_rms_norm_backward_quant",
        "RmsNormGradQuant",
        rms_norm_grad_quant,
        {"dst_type": made(ir_type_or(INT8), "dst_type")},
        makes={0: "dst_type"},
    ),
    NpuOp("npu_add_rms_norm", "AddRmsNorm", add_rms_norm),
    NpuOp("npu_add_rms_norm_cast", "AddRmsNormCast", add_rms_norm_cast),
    NpuOp(
        "npu_add_rms_norm_v2_functional", "AddRmsNorm", add_rms_norm, outputs=(1, 0, 2), copies=("x1", "x2")
    ),
    NpuOp(
        "npu_add_rms_norm_dynamic_quant",
        "AddRmsNormDynamicQuant",
        add_rms_norm_dynamic_quant,
        {"dst_type": made(ir_type_or(INT8), "y_dtype")},
        makes={0: "dst_type", 1: "dst_type"},
    ),
    NpuOp(
        "npu_add_rms_norm_dynamic_mx_quant",
        "AddRmsNormDynamicMxQuant",
        add_rms_norm_dynamic_mx_quant,
        _MX,
        makes={0: "dst_type"},
    ),
    NpuOp(
        "npu_rms_norm_dynamic_mx_quant",
        "RmsNormDynamicMxQuant",
        rms_norm_dynamic_mx_quant,
        _MX,
        makes={0: "dst_type"},
    ),
    NpuOp(
        "npu_group_norm_silu",
        "GroupNormSilu",
        group_norm_silu,
        {"x": "input", "gamma": "weight", "beta": "bias", "num_groups": "group"},
    ),
    NpuOp(
        "npu_masked_softmax_with_rel_pos_bias",
        "MaskedSoftmaxWithRelPosBias",
        masked_softmax_with_rel_pos_bias,
    ),
)
_GATHERED = "torchair::batch_norm_gather_stats_update_functional"
PLAIN = {
    _GATHERED: batch_norm_gather_stats,
    "batch_norm_reduce": batch_norm_reduce,
}
IN_PLACE = (
    InPlaceOp("batch_norm_gather_stats_update", _GATHERED, {"running_mean": 2, "running_var": 3}, (0, 1)),
)
