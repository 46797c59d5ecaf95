"""Reductions and scans. Sums of half precision are accumulated in float, as torch does."""

from __future__ import annotations

import math

import torch

from torchair.core import dtypes
from torchair.core.errors import UnsupportedOp
from torchair.core.kernel_params import Int, Ints
from torchair.engine.registry import attribute_kernels, kernel


@kernel("ReduceSum")
def reduce_sum(x, axes: Ints, *, keep_dims):
    """Return the sum over the axes, in the dtype of `x`; no axes, no reduction."""
    return torch.sum(x, axes, keep_dims, dtype=x.dtype) if axes else x


@kernel("ReduceMean")
def reduce_mean(x, axes: Ints, *, keep_dims, noop_with_empty_axes):
    """Return the mean over the axes."""
    if not axes and noop_with_empty_axes:
        return x
    return torch.mean(x, axes, keep_dims)


@kernel("ReduceMeanWithCast")
def reduce_mean_with_cast(x, axes: Ints, *, keep_dims, noop_with_empty_axes, dtype):
    """Return the mean over the axes, summed and returned in `dtype`, if one is given."""
    wanted = x.dtype if dtype == dtypes.UNDEFINED else dtypes.to_torch(dtype)
    return reduce_mean(x.to(wanted), axes, keep_dims=keep_dims, noop_with_empty_axes=noop_with_empty_axes)


@kernel("ReduceMax")
def reduce_max(x, axes: Ints, *, keep_dims):
    """Return the largest element over the axes; a NaN wins."""
    return torch.amax(x, axes, keep_dims) if axes else x


@kernel("ReduceMin")
def reduce_min(x, axes: Ints, *, keep_dims):
    """Return the smallest element over the axes; a NaN wins."""
    return torch.amin(x, axes, keep_dims) if axes else x


@kernel("ReduceProd")
def reduce_prod(x, axes: Ints, *, keep_dims):
    """Return the product over the axes, in the dtype of `x`."""
    for dim in sorted(axes, reverse=True):
        x = torch.prod(x, dim, keep_dims, dtype=x.dtype)
    return x


@kernel("ReduceAny")
def reduce_any(x, axes: Ints, *, keep_dims):
    """Return whether any element is true."""
    return torch.any(x, axes, keep_dims) if axes else x


@kernel("ReduceAll")
def reduce_all(x, axes: Ints, *, keep_dims):
    """Return whether all elements are true."""
    return torch.all(x, axes, keep_dims) if axes else x


@kernel("ReduceStdV2")
def reduce_std_v2(x, *, dim, correction, keepdim, is_mean_out):
    """Return the standard deviation with n - correction, and the mean."""
    assert is_mean_out, "the second output is the mean"
    return torch.std_mean(x, dim or None, correction=correction, keepdim=keepdim)


@kernel("ReduceStd")
def reduce_std(x, *, dim, unbiased, keepdim):
    """Return the standard deviation with n - 1 or n, and the mean."""
    return reduce_std_v2(x, dim=dim, correction=int(unbiased), keepdim=keepdim, is_mean_out=True)


@kernel("ReduceStdWithMean")
def reduce_std_with_mean(x, mean, *, dim, unbiased, keepdim, invert, epsilon, correction):
    """Return the standard deviation around a given mean, with n - correction, or with n if biased."""
    if invert:
        raise UnsupportedOp(
            "ReduceStdWithMean does not support an inverse result", near="set invert to False"
        )
    dims = [axis % x.ndim for axis in dim] or list(range(x.ndim))
    count = math.prod(x.shape[axis] for axis in dims) - (correction if unbiased else 0)
    # torch's reductions sum half precision in float32.
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    squares = torch.sum((wide - mean).square(), dims, keepdim)
    return torch.sqrt(squares / torch.sym_max(count, 0)).to(x.dtype)


@kernel("ReduceLogSumExp")
def reduce_log_sum_exp(x, axes: Ints, *, keep_dims):
    """Return log(sum(exp(x))), without a shift."""
    return torch.log(torch.sum(torch.exp(x), axes, keep_dims))


# How LpNormV2 writes the infinite norms.
_INFINITE = {2.0**31: float("inf"), 2.0**31 - 1: float("inf"), -(2.0**31): float("-inf")}


@kernel("LpNormV2")
def lp_norm(x, *, p, axes, keepdim, epsilon):
    """Return the p-norm; no axes means all."""
    norm = torch.linalg.vector_norm(x, _INFINITE.get(p, p), axes or None, keepdim)
    return torch.clamp_min(norm, epsilon) if epsilon else norm


@kernel("ArgMaxV2")
def arg_max(x, dimension: Int, *, dtype):
    """Return the index of the first largest element of a dim."""
    return torch.argmax(x, dimension).to(dtypes.to_torch(dtype))


@kernel("ArgMin")
def arg_min(x, dimension: Int, *, dtype):
    """Return the index of the first smallest element of a dim."""
    return torch.argmin(x, dimension).to(dtypes.to_torch(dtype))


@kernel("ArgMaxWithValue")
def arg_max_with_value(x, *, dimension, keep_dims):
    """Return the index of the largest element (INT32), and the element."""
    values, indices = torch.max(x, dimension, keep_dims)
    return indices.to(torch.int32), values


@kernel("ArgMinWithValue")
def arg_min_with_value(x, *, dimension, keep_dims):
    """Return the index of the smallest element (INT32), and the element."""
    values, indices = torch.min(x, dimension, keep_dims)
    return indices.to(torch.int32), values


@kernel("Cumsum")
def cumsum(x, axis: Int, *, exclusive, reverse):
    """Return running sums; exclusive ones start with 0, reverse ones run from the end."""
    return _scan(torch.cumsum, x, axis, 0, exclusive, reverse)


@kernel("Cumprod")
def cumprod(x, axis: Int, *, exclusive, reverse):
    """Return running products; exclusive ones start with 1, reverse ones run from the end."""
    return _scan(torch.cumprod, x, axis, 1, exclusive, reverse)


@kernel("CumulativeLogsumexp")
def cumulative_logsumexp(x, axis: Int, *, exclusive, reverse):
    """Return running log of sums of exponentials."""
    return _scan(lambda y, dim, dtype: torch.logcumsumexp(y, dim), x, axis, float("-inf"), exclusive, reverse)


def _scan(run, x, dim, first, exclusive, reverse):
    x = torch.flip(x, [dim]) if reverse else x
    if exclusive:
        start = torch.full_like(x.narrow(dim, 0, 1), first)
        x = torch.cat([start, x.narrow(dim, 0, x.shape[dim] - 1)], dim)
    y = run(x, dim, dtype=x.dtype)
    return torch.flip(y, [dim]) if reverse else y


@kernel("Cummax")
def cummax(x, *, dim):
    """Return the running maximum and its index."""
    return torch.cummax(x, dim)


@kernel("Cummin")
def cummin(x, *, axis):
    """Return the running minimum and its index."""
    return torch.cummin(x, axis)


@kernel("Histogram")
def histogram(x, *, bins, min, max):
    """Count values in equal bins; equal ends mean the range of the data."""
    return torch.histc(x, bins, min, max)


attribute_kernels({
    "ReduceSumD": reduce_sum, "ReduceMeanD": reduce_mean, "ReduceMaxD": reduce_max, "ReduceMinD": reduce_min,
    "ReduceProdD": reduce_prod, "ReduceAnyD": reduce_any, "ReduceAllD": reduce_all, "ArgMaxD": arg_max,
    "ArgMinD": arg_min, "CumsumD": cumsum, "CumprodD": cumprod, "CumulativeLogsumexpD": cumulative_logsumexp,
})  # fmt: skip
