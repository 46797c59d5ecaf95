"""Softmax and normalization. Statistics are float32 (double for doubles), whatever the dtype of the data."""

from __future__ import annotations

import math

import torch

from torchair.core.kernel_params import Ints
from torchair.engine.registry import kernel

aten = torch.ops.aten


def _only(axes):
    """Return the one dim of an axes attribute."""
    assert len(axes) == 1, "softmax runs over one dim"
    return axes[0]


def _statistic(x):
    return x if x.dtype == torch.float64 else x.float()


@kernel("SoftmaxV2")
def softmax(x, *, axes, half_to_float):
    """Compute softmax over one dim; half_to_float returns float32 for fp16."""
    return torch.softmax(x, _only(axes), dtype=torch.float32 if half_to_float else None)


@kernel("LogSoftmaxV2")
def log_softmax(logits, *, axes):
    """Return the logarithm of softmax over one dim."""
    return torch.log_softmax(logits, _only(axes))


@kernel("SoftmaxGrad")
def softmax_grad(softmax, grad_softmax, *, axes):
    """y * (dy - sum(y * dy))."""
    return aten._softmax_backward_data(grad_softmax, softmax, _only(axes), softmax.dtype)


@kernel("LogSoftmaxGrad")
def log_softmax_grad(grad, x, *, axis):
    """Return dy - exp(y) * sum(dy); `x` is the result of log-softmax."""
    return aten._log_softmax_backward_data(grad, x, _only(axis), x.dtype)


@kernel("LayerNormV4")
def layer_norm(x, normalized_shape: Ints, gamma, beta, *, epsilon):
    """Return (y, mean, rstd) over the last dims; statistics keep these dims with size 1."""
    y, mean, rstd = torch.native_layer_norm(x, normalized_shape, gamma, beta, epsilon)
    return y, _statistic(mean), _statistic(rstd)


@kernel("LayerNormGradV3")
def layer_norm_grad(dy, x, rstd, mean, gamma):
    """Return the gradients of x, gamma and beta."""
    if x.device.type == "cpu" and gamma.dtype == x.dtype:
        mean, rstd = mean.to(x.dtype), rstd.to(x.dtype)
    return aten.native_layer_norm_backward(dy, x, gamma.shape, mean, rstd, gamma, gamma, [True, True, True])


def _group_sizes(x, data_format):
    """Return (N, C, elements per channel) of data in torch's order."""
    assert data_format == "NCHW", "data are in torch's order"
    return x.shape[0], x.shape[1], math.prod(x.shape[2:])


@kernel("GroupNormV2")
def group_norm(x, gamma, beta, *, num_groups, data_format, eps, is_training):
    """Return (y, mean, rstd); statistics are [N, groups]."""
    assert is_training, "statistics come from the data"
    sizes = _group_sizes(x, data_format)
    y, mean, rstd = torch.native_group_norm(x.contiguous(), gamma, beta, *sizes, num_groups, eps)
    return y, _statistic(mean), _statistic(rstd)


@kernel("GroupNorm")
def group_norm_with_variance(x, gamma, beta, *, num_groups, data_format, eps, is_training):
    """Return (y, mean, variance) in the dtype of x; statistics are [N, groups].

    Data are in torch's order whatever the format attribute: producers leave it at its default.
    """
    y, *_ = group_norm(
        x, gamma, beta, num_groups=num_groups, data_format="NCHW", eps=eps, is_training=is_training
    )
    groups = _statistic(x).reshape(x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups)
    mean = groups.mean(2, keepdim=True)
    variance = (groups - mean).square().mean(2)
    return y, mean.squeeze(2).to(x.dtype), variance.to(x.dtype)


@kernel("GroupNormGrad")
def group_norm_grad(
    dy, mean, rstd, x, gamma, *, num_groups, data_format, dx_is_require, dgamma_is_require, dbeta_is_require
):
    """Return the gradients of x, gamma and beta."""
    sizes = _group_sizes(x, data_format)
    assert all((dx_is_require, dgamma_is_require, dbeta_is_require)), "unread results cost nothing here"
    dy, x, mean, rstd = dy.contiguous(), x.contiguous(), mean.to(x.dtype), rstd.to(x.dtype)
    return aten.native_group_norm_backward(dy, x, mean, rstd, gamma, *sizes, num_groups, [True, True, True])


@kernel("RmsNorm")
def rms_norm(x, gamma, *, epsilon):
    """Return (x * rstd * gamma, rstd) with rstd = 1 / sqrt(mean(x²) + eps), all in float32.

    The mean is over the dims of gamma.
    """
    wide = _statistic(x)
    dims = list(range(x.ndim - gamma.ndim, x.ndim))
    rstd = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)
    return (wide * rstd * gamma).to(x.dtype), rstd


@kernel("RmsNormGrad")
def rms_norm_grad(dy, x, rstd, gamma):
    """Return the gradients of x and gamma; that of gamma stays float32."""
    leading, dims = list(range(x.ndim - gamma.ndim)), list(range(x.ndim - gamma.ndim, x.ndim))
    grad, normed = _statistic(dy), _statistic(x) * rstd
    inner = grad * gamma
    dx = rstd * (inner - normed * (inner * normed).mean(dims, keepdim=True))
    dgamma = grad * normed
    return dx.to(x.dtype), dgamma.sum(leading) if leading else dgamma


@kernel("BNInfer")
def bn_infer(x, scale, offset, mean, variance, *, epsilon):
    """Return (x - mean) / sqrt(variance + eps) * scale + offset per channel (dim 1)."""
    return aten._native_batch_norm_legit_no_training(x, scale, offset, mean, variance, 0.0, epsilon)[0]


@kernel("BatchNormV3")
def batch_norm(x, weight, bias, running_mean, running_var, *, epsilon, momentum, is_training):
    """Return (y, running mean, running variance, batch mean, batch rstd); running variances are unbiased."""
    if not is_training:
        y = bn_infer(x, weight, bias, running_mean, running_var, epsilon=epsilon)
        return y, running_mean, running_var, running_mean, torch.rsqrt(running_var + epsilon)
    given = [x, weight, bias, running_mean, running_var]
    if len({part.dtype for part in given}) > 1:
        # In float32 throughout: a decomposition would round the statistics to the dtype of the data.
        given = [_statistic(part) for part in given]
    y, save_mean, save_rstd, mean, var = aten._native_batch_norm_legit_functional(
        *given, True, momentum, epsilon
    )
    statistics = _statistic(save_mean), _statistic(save_rstd)
    return y.to(x.dtype), mean.to(running_mean.dtype), var.to(running_var.dtype), *statistics


@kernel("BatchNormGradV3")
def batch_norm_grad(dy, x, weight, running_mean, running_var, save_mean, save_rstd, *, is_training, epsilon):
    """Return the gradients of x, weight and bias, by batch statistics (training) or by running ones."""
    return aten.native_batch_norm_backward(
        dy,
        x,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_rstd,
        is_training,
        epsilon,
        [True, True, True],
    )


# Batch normalization in steps. Statistics are vectors of channels, or broadcast against the data.


def _others(x):
    """Return all dims but that of the channels."""
    return [dim for dim in range(x.ndim) if dim != 1]


def _per_channel(statistic, x):
    """Return a statistic in float32, shaped to broadcast with x."""
    result = _statistic(statistic)
    return result if result.ndim == x.ndim else result.reshape(1, -1, *[1] * (x.ndim - 2))


def _normed(x, mean, variance, epsilon):
    """Return (x - mean) / sqrt(variance + eps), and 1 / sqrt(variance + eps)."""
    rstd = torch.rsqrt(_per_channel(variance, x) + epsilon)
    return (_statistic(x) - _per_channel(mean, x)) * rstd, rstd


def _count(x):
    """Return the number of elements per channel."""
    return math.prod(x.shape[dim] for dim in _others(x))


@kernel("BNTrainingReduce", "BN3DTrainingReduce")
def bn_training_reduce(x):
    """Return the sums of elements and of squares, per channel."""
    wide = _statistic(x)
    return wide.sum(_others(x)), wide.square().sum(_others(x))


@kernel("BNTrainingUpdate", "BN3DTrainingUpdate")
def bn_training_update(x, sum, square_sum, scale, offset, mean, variance, *, factor, epsilon):
    """Return (y, running mean, running variance, batch mean, batch variance) from the sums.

    Only running variances are unbiased.
    """
    y, batch_mean, batch_variance = bn_training_update_v2(x, sum, square_sum, scale, offset, epsilon=epsilon)
    count = _count(x)
    unbiased = batch_variance * count / (count - 1)
    new_mean = factor * batch_mean + (1 - factor) * mean
    return y, new_mean, factor * unbiased + (1 - factor) * variance, batch_mean, batch_variance


@kernel("BNTrainingUpdateV2")
def bn_training_update_v2(x, sum, square_sum, scale, offset, *, epsilon):
    """Return (y, batch mean, batch variance) from the sums."""
    batch_mean = sum / _count(x)
    # A difference of rounded sums: clamp it, since no variance is below zero.
    batch_variance = (square_sum / _count(x) - batch_mean.square()).clamp_min(0)
    normed, _ = _normed(x, batch_mean, batch_variance, epsilon)
    y = normed * _per_channel(scale, x) + _per_channel(offset, x)
    return y.to(x.dtype), batch_mean, batch_variance


@kernel("BNTrainingUpdateGrad", "BN3DTrainingUpdateGrad")
def bn_training_update_grad(grads, x, batch_mean, batch_variance, *, epsilon):
    """Return the gradients of scale and offset, in the shape of the statistics."""
    normed, _ = _normed(x, batch_mean, batch_variance, epsilon)
    wide, dims = _statistic(grads), _others(x)
    of_scale, of_offset = (wide * normed).sum(dims), wide.sum(dims)
    return of_scale.reshape(batch_mean.shape), of_offset.reshape(batch_mean.shape)


@kernel("BNTrainingReduceGrad", "BN3DTrainingReduceGrad")
def bn_training_reduce_grad(grads, x, diff_scale, diff_offset, scale, batch_mean, batch_variance, *, epsilon):
    """Return the gradient of x, given those of scale and offset."""
    normed, rstd = _normed(x, batch_mean, batch_variance, epsilon)
    mean_dy, mean_dy_normed = (_per_channel(part, x) / _count(x) for part in (diff_offset, diff_scale))
    inner = _statistic(grads) - mean_dy - normed * mean_dy_normed
    return (_per_channel(scale, x) * rstd * inner).to(grads.dtype)


@kernel("BNInferGrad")
def bn_infer_grad(grads, scale, batch_variance, *, epsilon):
    """Return the gradient of the data where the statistics are given."""
    rstd = torch.rsqrt(_per_channel(batch_variance, grads) + epsilon)
    return (_statistic(grads) * _per_channel(scale, grads) * rstd).to(grads.dtype)


@kernel("SyncBatchNormBackwardReduce")
def sync_batch_norm_backward_reduce(sum_dy, sum_dy_dx_pad, mean, invert_std):
    """Return (the sum of dy * (x - mean), the gradient of the weight), from the sums of dy and of dy * x."""
    sum_dy_xmu = sum_dy_dx_pad - mean * sum_dy
    return sum_dy_xmu, sum_dy_xmu * invert_std


@kernel("SyncBatchNormBackwardElemt")
def sync_batch_norm_backward_elemt(grad_output, save_input, mean, invstd, weight, mean_dy, mean_dy_xmu):
    """Return the gradient of the data from the means of dy and of dy * (x - mean) over all processes."""
    x = _statistic(save_input)
    mean, invstd, weight, mean_dy, mean_dy_xmu = (
        _per_channel(part, x) for part in (mean, invstd, weight, mean_dy, mean_dy_xmu)
    )
    inner = _statistic(grad_output) - mean_dy - (x - mean) * invstd.square() * mean_dy_xmu
    return (inner * invstd * weight).to(grad_output.dtype)
