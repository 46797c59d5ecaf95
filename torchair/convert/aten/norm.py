"""ATen softmax and normalization. torch itself decomposes the weight norm."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten.index import along
from torchair.convert.base.operands import cast, dim_of, is_newest_chip, like, pack, shape_of, size_of
from torchair.convert.base.registry import converter, opaque
from torchair.core import dtypes

aten = torch.ops.aten


@converter(aten._softmax.default)
def softmax(self, dim, half_to_float):
    """Compute softmax over one dim."""
    return ge.SoftmaxV2(self, axes=[dim_of(dim, self.rank)], half_to_float=half_to_float)


@converter(aten._safe_softmax.default)
def safe_softmax(self, dim, dtype=None, *, meta_outputs):
    """Compute softmax over one dim in the dtype of the result; it is 0 if all inputs are -inf."""
    x, axes = cast(self, meta_outputs.dtype), [dim_of(dim, self.rank)]
    hidden = ge.ReduceAll(ge.Equal(x, like(float("-inf"), x)), axes, keep_dims=True)
    return ge.MaskedFill(ge.SoftmaxV2(x, axes=axes), hidden, like(0, x))


@converter(aten._log_softmax.default)
def log_softmax(self, dim, half_to_float, *, meta_outputs):
    """Return the logarithm of softmax over one dim."""
    return ge.LogSoftmaxV2(cast(self, meta_outputs.dtype), axes=[dim_of(dim, self.rank)])


@converter(aten._softmax_backward_data.default)
def softmax_backward(grad_output, output, dim, input_dtype):
    """Return the gradient of softmax, from its result."""
    made = ge.SoftmaxGrad(output, cast(grad_output, output.dtype), axes=[dim_of(dim, output.rank)])
    return cast(made, input_dtype)


@converter(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad_output, output, dim, input_dtype):
    """Return the gradient of log-softmax, from its result."""
    made = ge.LogSoftmaxGrad(cast(grad_output, output.dtype), output, axis=[dim_of(dim, output.rank)])
    return cast(made, input_dtype)


def filled(value, like, channels):
    """Return a vector with one entry per channel."""
    dtype = like if isinstance(like, int) else like.dtype
    return ge.Fill(
        [channels] if isinstance(channels, int) else ge.Unsqueeze(channels, axes=[0]), cast(value, dtype)
    )


def statistics_dtype(x):
    """Return the dtype of GE's statistics: float32, or double for doubles."""
    return x.dtype if dtypes.to_torch(x.dtype) == torch.float64 else ge.DataType.DT_FLOAT


def in_fx_dtypes(results, specs, used):
    """Return results in the dtypes of FX; None for unread ones."""
    return [
        cast(result, spec.dtype) if wanted else None
        for result, spec, wanted in zip(results, specs, used, strict=True)
    ]


@converter(aten.native_layer_norm.default)
def native_layer_norm(input, normalized_shape, weight, bias, eps, *, meta_outputs, used):
    """Return (y, mean, rstd) over the last dims."""
    return in_fx_dtypes(
        ge.LayerNormV4(input, normalized_shape, weight, bias, epsilon=eps), meta_outputs, used
    )


@converter(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask, *, meta_outputs, used
):
    """Return the gradients of input, weight and bias; GE requires rstd before mean, and a weight."""
    if weight is None:
        weight = ge.Fill(normalized_shape, cast(1.0, input.dtype))
    statistics = [cast(part, statistics_dtype(input)) for part in (rstd, mean)]
    made = ge.LayerNormGradV3(grad_out, input, *statistics, weight)
    return in_fx_dtypes(made, meta_outputs, [a and b for a, b in zip(used, output_mask, strict=True)])


@converter(aten.native_group_norm.default)
def native_group_norm(input, weight, bias, N, C, HxW, group, eps, *, meta_outputs, used):
    """Return (y, mean, rstd); statistics are [N, group]."""
    weight = filled(1.0, input, C) if weight is None else weight
    bias = filled(0.0, input, C) if bias is None else bias
    form = {"num_groups": group, "data_format": "NCHW", "eps": eps}
    if is_newest_chip():
        return in_fx_dtypes(ge.GroupNormV2(input, weight, bias, **form), meta_outputs, used)
    given = [input, weight, bias]
    if used[1] or used[2]:
        # The older op rounds its statistics to the dtype of the data.
        given = [cast(part, statistics_dtype(input)) for part in given]
    y, mean, variance = ge.GroupNorm(*given, **form)
    rstd = ge.Rsqrt(ge.Add(variance, like(eps, variance))) if used[2] else None
    return in_fx_dtypes([y, mean, rstd], meta_outputs, used)


@converter(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask, *, meta_outputs, used
):
    """Return the gradients of input, weight and bias."""
    if not is_newest_chip():
        raise NotImplementedError("only the newest chips have GroupNormGrad")
    weight = filled(1.0, input, C) if weight is None else weight
    made = ge.GroupNormGrad(grad_out, mean, rstd, input, weight, num_groups=group, data_format="NCHW")
    return in_fx_dtypes(made, meta_outputs, [a and b for a, b in zip(used, output_mask, strict=True)])


@converter(aten._fused_rms_norm.default)
def fused_rms_norm(input, normalized_shape, weight, eps, *, meta_outputs, used):
    """Return (y, rstd): x / sqrt(mean(x²) + eps) * weight over the last dims."""
    dtype = dtypes.to_torch(input.dtype)
    if eps is None:
        eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    weight = ge.Fill(normalized_shape, cast(1.0, input.dtype)) if weight is None else weight
    return in_fx_dtypes(ge.RmsNorm(input, weight, epsilon=eps), meta_outputs, used)


@converter(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    grad_out, input, normalized_shape, rstd, weight, output_mask, *, meta_outputs, used
):
    """Return the gradients of input and weight."""
    weight = ge.Fill(normalized_shape, cast(1.0, input.dtype)) if weight is None else weight
    made = ge.RmsNormGrad(grad_out, input, cast(rstd, statistics_dtype(input)), weight)
    return in_fx_dtypes(made, meta_outputs, [a and b for a, b in zip(used, output_mask, strict=True)])


def affine(input, weight, bias, running):
    """Return weight and bias per channel; missing ones are created in the dtype of the statistics."""
    dtype = running.dtype if running is not None else statistics_dtype(input)
    channels = size_of(input, 1)
    weight = filled(1.0, dtype, channels) if weight is None else weight
    return weight, filled(0.0, dtype, channels) if bias is None else bias


def as_images(*tensors):
    """Return data of any rank as [N, C, H, W], and a function that restores the rank of a result."""
    x = tensors[0]
    if x.rank == 4:
        return tensors, lambda y: y
    if x.rank < 4:
        axes = list(range(x.rank, 4))
        return [ge.Unsqueeze(part, axes=axes) for part in tensors], lambda y: ge.Squeeze(y, axis=axes)
    flat = pack([size_of(x, 0), size_of(x, 1), -1, size_of(x, x.rank - 1)])
    return [ge.Reshape(part, flat) for part in tensors], lambda y: ge.Reshape(y, shape_of(x))


def empty(spec):
    """Return an empty tensor for a statistic that inference does not compute."""
    return ge.Const(torch.empty(0, dtype=spec.torch_dtype), readable=False)


@converter(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(input, weight, bias, running_mean, running_var, momentum, eps, *, meta_outputs):
    """Apply the running statistics per channel; the other two results are empty."""
    weight, bias = affine(input, weight, bias, running_mean)
    (x,), restore = as_images(input)
    y = restore(ge.BNInfer(x, weight, bias, running_mean, running_var, epsilon=eps))
    return y, empty(meta_outputs[1]), empty(meta_outputs[2])


def batch_norm(input, weight, bias, running_mean, running_var, momentum, eps):
    """Call BatchNormV3 with batch statistics: (y, running mean, running variance, batch mean, batch rstd)."""
    weight, bias = affine(input, weight, bias, running_mean)
    (x,), restore = as_images(input)
    y, *statistics = ge.BatchNormV3(
        x, weight, bias, ge.TensorMove(running_mean), ge.TensorMove(running_var),
        epsilon=eps, momentum=momentum, is_training=True,
    )  # fmt: skip
    return restore(y), *statistics


@converter(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    input, weight, bias, running_mean, running_var, training, momentum, eps, *, meta_outputs, used
):
    """Return (y, batch mean, batch rstd, new running mean, new running variance)."""
    if not training:
        y, mean, rstd = batch_norm_inference(
            input, weight, bias, running_mean, running_var, momentum, eps, meta_outputs=meta_outputs
        )
        running = [ge.TensorMove(running_mean), ge.TensorMove(running_var)]
        return in_fx_dtypes([y, mean, rstd, *running], meta_outputs, used)
    y, mean, var, save_mean, save_rstd = batch_norm(
        input, weight, bias, running_mean, running_var, momentum, eps
    )
    return in_fx_dtypes([y, save_mean, save_rstd, mean, var], meta_outputs, used)


@converter(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(input, weight, bias, training, momentum, eps, *, meta_outputs, used):
    """Use batch statistics only: the running ones start from 0 and 1, and are dropped."""
    dtype, channels = statistics_dtype(input), size_of(input, 1)
    running = filled(0.0, dtype, channels), filled(1.0, dtype, channels)
    y, _, _, save_mean, save_rstd = batch_norm(input, weight, bias, *running, momentum, eps)
    return in_fx_dtypes([y, save_mean, save_rstd], meta_outputs, used)


@converter(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(
    input, weight, bias, running_mean, running_var, momentum, eps, *, meta_outputs, used
):
    """Convert as the functional form; the reserve is empty."""
    y, mean, var, save_mean, save_rstd = batch_norm(
        input, weight, bias, running_mean, running_var, momentum, eps
    )
    outputs = [y, save_mean, save_rstd, empty(meta_outputs[3]), mean, var]
    return in_fx_dtypes(outputs, meta_outputs, used)


@converter(aten._batch_norm_no_update.default)
def batch_norm_no_update(input, weight, bias, running_mean, running_var, momentum, eps, *, meta_outputs):
    """Convert inference with an empty reserve."""
    if running_mean is None or running_var is None:
        raise NotImplementedError("it has no running statistics")
    made = batch_norm_inference(
        input, weight, bias, running_mean, running_var, momentum, eps, meta_outputs=meta_outputs
    )
    return *made, empty(meta_outputs[3])


@converter(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask, *,
    meta_outputs, used,
):  # fmt: skip
    """Return the gradients of input, weight and bias, by batch or by running statistics."""
    dtype, channels = statistics_dtype(input), size_of(input, 1)
    weight = filled(1.0, dtype, channels) if weight is None else weight
    wanted = [a and b for a, b in zip(used, output_mask, strict=True)]
    (grad, x), restore = as_images(grad_out, input)
    if not is_newest_chip():
        statistics = (save_mean, save_invstd) if train else (running_mean, running_var)
        made = _batch_norm_gradients(grad, x, weight, statistics, train, eps)
        return in_fx_dtypes([restore(made[0]), *made[1:]], meta_outputs, wanted)
    # Statistics of the other kind are not read; GE still requires tensors.
    running = [save_mean, save_invstd] if running_mean is None else [running_mean, running_var]
    saved = [save_mean, save_invstd] if train else running
    made = ge.BatchNormGradV3(grad, x, weight, *running, *saved, is_training=train, epsilon=eps)
    return in_fx_dtypes([restore(made[0]), *made[1:]], meta_outputs, wanted)


def _batch_norm_gradients(grad, x, weight, statistics, train, eps):
    """Return the gradients of data, weight and bias; with batch statistics the second one is 1 /
    deviation.
    """
    mean, spread = statistics
    if train:
        one = like(1, spread)
        spread = ge.Sub(ge.RealDiv(one, ge.Square(spread)), like(eps, spread))
    scale, shift = ge.BNTrainingUpdateGrad(grad, x, mean, spread, epsilon=eps)
    if not train:
        return ge.BNInferGrad(grad, weight, spread, epsilon=eps), scale, shift
    return ge.BNTrainingReduceGrad(grad, x, scale, shift, weight, mean, spread, epsilon=eps), scale, shift


@converter(aten.batch_norm_backward.default)
def batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask,
    reserve, *, meta_outputs, used,
):  # fmt: skip
    """Convert the same op under its newer name."""
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask,
        meta_outputs=meta_outputs, used=used,
    )  # fmt: skip


def _per_channel(x, vector):
    """Return a vector of channels shaped to broadcast with data, in at least float32."""
    return along(cast(vector, statistics_dtype(x)), 1, x.rank)


def _others(x):
    """Return all dims but that of the channels."""
    return [0, *range(2, x.rank)]


@converter(aten.batch_norm_stats.default)
def batch_norm_stats(input, eps):
    """Return (mean, 1 / standard deviation) of every channel."""
    x = cast(input, statistics_dtype(input))
    mean = ge.ReduceMean(x, _others(x), keep_dims=True)
    variance = ge.ReduceMean(ge.Square(ge.Sub(x, mean)), _others(x))
    return ge.Squeeze(mean, axis=_others(x)), ge.Rsqrt(ge.Add(variance, cast(eps, variance.dtype)))


@converter(aten.batch_norm_elemt.default)
def batch_norm_elemt(input, weight, bias, mean, invstd, eps):
    """Return (x - mean) * invstd * weight + bias."""
    x = cast(input, statistics_dtype(input))
    made = ge.Mul(ge.Sub(x, _per_channel(x, mean)), _per_channel(x, invstd))
    made = made if weight is None else ge.Mul(made, _per_channel(x, weight))
    made = made if bias is None else ge.Add(made, _per_channel(x, bias))
    return cast(made, input.dtype)


@converter(aten.batch_norm_backward_reduce.default)
def batch_norm_backward_reduce(
    grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g, *, meta_outputs
):
    """Return (sum of dy, sum of dy * (x - mean), gradient of weight, gradient of bias)."""
    grad, x = (cast(part, statistics_dtype(input)) for part in (grad_out, input))
    total = ge.ReduceSum(grad, _others(x))
    moment = ge.ReduceSum(ge.Mul(grad, ge.Sub(x, _per_channel(x, mean))), _others(x))
    outputs = [total, moment, ge.Mul(moment, cast(invstd, moment.dtype)), total]
    wanted = [input_g, input_g, weight_g, bias_g]
    return [
        cast(part, spec.dtype) if is_wanted else None
        for part, spec, is_wanted in zip(outputs, meta_outputs, wanted, strict=True)
    ]


@converter(aten.batch_norm_backward_elemt.default)
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    """Return the gradient of the data, from sums over all processes."""
    grad, x = (cast(part, statistics_dtype(input)) for part in (grad_out, input))
    share = ge.Reciprocal(cast(ge.ReduceSum(count, [0]), x.dtype))
    scale = _per_channel(x, invstd)
    centred = ge.Sub(x, _per_channel(x, mean))
    slope = ge.Mul(ge.Square(scale), ge.Mul(_per_channel(x, sum_dy_xmu), share))
    made = ge.Sub(ge.Sub(grad, ge.Mul(_per_channel(x, sum_dy), share)), ge.Mul(centred, slope))
    made = ge.Mul(made, scale if weight is None else ge.Mul(scale, _per_channel(x, weight)))
    return cast(made, input.dtype)


opaque({
    aten.batch_norm_gather_stats.default: "it updates running statistics that its schema does not declare",
    aten.batch_norm_gather_stats_with_counts.default:
        "it updates running statistics that its schema does not declare",
    aten.batch_norm_update_stats.default: "it updates running statistics that its schema does not declare",
})  # fmt: skip
