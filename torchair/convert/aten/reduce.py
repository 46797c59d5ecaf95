"""ATen reductions and scans."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import (
    BOOL,
    FLOAT,
    INT64,
    cast,
    dim_of,
    dims_of,
    is_newest_chip,
    like,
    size_of,
    torch_dtype,
)
from torchair.convert.base.registry import converter

aten = torch.ops.aten


@converter(aten.sum.default, aten.sum.dim_IntList)
def sum_dims(self, dim=None, keepdim=False, *, dtype=None, meta_outputs):
    """Return the sum over some dims, or all."""
    return _total(ge.ReduceSum, cast(self, meta_outputs.dtype), dim, keepdim)


@converter(aten.mean.default, aten.mean.dim)
def mean(self, dim=None, keepdim=False, *, dtype=None, meta_outputs):
    """Return the mean over some dims, or all."""
    return _total(ge.ReduceMean, cast(self, meta_outputs.dtype), dim, keepdim)


@converter(aten.amax.default)
def amax(self, dim=(), keepdim=False):
    """Return the largest over some dims, or all."""
    return _reduce(ge.ReduceMax, self, dim, keepdim)


@converter(aten.amin.default)
def amin(self, dim=(), keepdim=False):
    """Return the smallest over some dims, or all."""
    return _reduce(ge.ReduceMin, self, dim, keepdim)


@converter(aten.max.default)
def max_all(self):
    """Return the largest element."""
    return _reduce(ge.ReduceMax, self, None, False)


@converter(aten.min.default)
def min_all(self):
    """Return the smallest element."""
    return _reduce(ge.ReduceMin, self, None, False)


@converter(aten.prod.default)
def prod(self, *, dtype=None, meta_outputs):
    """Return the product of all elements."""
    return _reduce(ge.ReduceProd, cast(self, meta_outputs.dtype), None, False)


@converter(aten.prod.dim_int)
def prod_dim(self, dim, keepdim=False, *, dtype=None, meta_outputs):
    """Return the product over one dim."""
    return _reduce(ge.ReduceProd, cast(self, meta_outputs.dtype), dim, keepdim)


@converter(aten.any.default, aten.any.dim, aten.any.dims)
def any_dims(self, dim=None, keepdim=False, *, meta_outputs):
    """Return whether any element is true; an empty list of dims reduces nothing."""
    return _reduce_bool(ge.ReduceAny, self, dim, keepdim, meta_outputs)


@converter(aten.all.default, aten.all.dim, aten.all.dims)
def all_dims(self, dim=None, keepdim=False, *, meta_outputs):
    """Return whether all elements are true; an empty list of dims reduces nothing."""
    return _reduce_bool(ge.ReduceAll, self, dim, keepdim, meta_outputs)


def _reduce_bool(op, x, dim, keepdim, spec):
    """Reduce truth values: uint8 stays uint8, everything else becomes bool."""
    truth = cast(x, BOOL)
    return cast(truth if dim == [] else _reduce(op, truth, dim, keepdim), spec.dtype)


def _reduce(op, x, dim, keepdim):
    """Reduce; all axes are listed, because an empty list would mean no reduction."""
    return op(x, dims_of(dim, x.rank), keep_dims=keepdim) if x.rank else ge.Identity(x)


def _total(op, x, dim, keepdim):
    """Sum from 0, even a single element: -0.0 becomes 0.0."""
    return _reduce(op, x, dim, keepdim) if x.rank else ge.Add(x, cast(0, x.dtype))


@converter(aten.max.dim)
def max_dim(self, dim, keepdim=False):
    """Return the largest element of a dim and its index."""
    return _with_index(ge.ArgMaxWithValue, self, dim, keepdim)


@converter(aten.min.dim)
def min_dim(self, dim, keepdim=False):
    """Return the smallest element of a dim and its index."""
    return _with_index(ge.ArgMinWithValue, self, dim, keepdim)


def alone(x):
    """Return the only element of a tensor without dims, and its index."""
    return ge.Identity(x), cast(0, INT64)


def _with_index(op, x, dim, keepdim):
    if not x.rank:
        return alone(x)
    index, value = op(x, dimension=dim_of(dim, x.rank), keep_dims=keepdim)
    return value, cast(index, INT64)


@converter(aten.argmax.default)
def argmax(self, dim=None, keepdim=False):
    """Return the index of the largest element of a dim; without a dim, in the flat tensor."""
    return _arg(ge.ArgMaxV2, self, dim, keepdim)


@converter(aten.argmin.default)
def argmin(self, dim=None, keepdim=False):
    """Return the index of the smallest element of a dim; without a dim, in the flat tensor."""
    return _arg(ge.ArgMin, self, dim, keepdim)


def _arg(op, x, dim, keepdim):
    if not x.rank:
        return cast(0, INT64)
    if dim is not None:
        axis = dim_of(dim, x.rank)
        found = op(x, axis, dtype=INT64)
        return ge.Unsqueeze(found, axes=[axis]) if keepdim else found
    found = op(ge.Reshape(x, [-1]), 0, dtype=INT64)
    return ge.Reshape(found, [1] * x.rank) if keepdim else found


@converter(aten.std.correction)
def std(self, dim=None, *, correction=None, keepdim=False):
    """Standard deviation."""
    return _std_mean(self, dim, correction, keepdim)[0]


@converter(aten.std_mean.correction)
def std_mean(self, dim=None, *, correction=None, keepdim=False):
    """Standard deviation and mean."""
    return _std_mean(self, dim, correction, keepdim)


@converter(aten.var.correction)
def var(self, dim=None, *, correction=None, keepdim=False):
    """Variance."""
    return _var_mean(self, dim, correction, keepdim)[0]


@converter(aten.var_mean.correction)
def var_mean(self, dim=None, *, correction=None, keepdim=False):
    """Return variance and mean."""
    return _var_mean(self, dim, correction, keepdim)


def _std_mean(x, dim, correction, keepdim):
    """Compute both in one pass over the data; the older op supports the corrections 0 and 1."""
    correction = 1 if correction is None else correction
    if not x.rank or torch_dtype(x).is_complex:
        raise NotImplementedError(f"no op for {torch_dtype(x)} with {x.rank} dims")
    axes = dims_of(dim, x.rank)
    if torch_dtype(x) == torch.float64:
        return _of_doubles(x, axes, float(correction), keepdim)
    if correction in (0, 1):
        return ge.ReduceStd(x, dim=axes, unbiased=correction == 1, keepdim=keepdim)
    if correction == int(correction) and is_newest_chip():
        return ge.ReduceStdV2(x, dim=axes, correction=int(correction), keepdim=keepdim)
    deviation, middle = ge.ReduceStd(x, dim=axes, unbiased=False, keepdim=keepdim)
    count, freedom = _counts(x, axes, float(correction), FLOAT)
    scaled = ge.Mul(cast(deviation, FLOAT), ge.Sqrt(ge.RealDiv(count, freedom)))
    return cast(scaled, x.dtype), middle


def _counts(x, axes, correction, dtype):
    """Return the number of elements per result, and that number less the correction, at least 0."""
    count = cast(1, dtype)
    for axis in axes:
        count = ge.Mul(count, cast(size_of(x, axis), dtype))
    return count, ge.Maximum(ge.Sub(count, like(correction, count)), like(0, count))


def _of_doubles(x, axes, correction, keepdim):
    """Compute by definition: the ops support no doubles.

    The mean is taken in two steps, because a sum may overflow.
    """
    count, freedom = _counts(x, axes, correction, x.dtype)
    middle = ge.ReduceSum(ge.RealDiv(x, count), axes, keep_dims=True)
    middle = ge.Add(middle, ge.ReduceMean(ge.Sub(x, middle), axes, keep_dims=True))
    squares = ge.ReduceSum(ge.Square(ge.Sub(x, middle)), axes, keep_dims=keepdim)
    deviation = ge.Sqrt(ge.RealDiv(squares, freedom))
    return deviation, middle if keepdim else ge.Squeeze(middle, axis=axes)


def _var_mean(x, dim, correction, keepdim):
    """Square the standard deviation; half precision would round twice, so compute in float."""
    wide = cast(x, FLOAT) if torch_dtype(x).itemsize == 2 else x
    deviation, middle = _std_mean(wide, dim, correction, keepdim)
    return cast(ge.Square(deviation), x.dtype), cast(middle, x.dtype)


@converter(aten.logsumexp.default)
def logsumexp(self, dim, keepdim=False, *, meta_outputs):
    """Return log(sum(exp(x))), shifted by the maximum unless it is infinite."""
    if torch_dtype(self).is_complex:
        raise NotImplementedError("complex numbers have no maximum")
    x = cast(self, meta_outputs.dtype)
    if not x.rank:
        return _total(ge.ReduceSum, x, dim, keepdim)
    axes = dims_of(dim, x.rank)
    highest = ge.ReduceMax(x, axes, keep_dims=True)
    shift = ge.SelectV2(ge.IsInf(highest), like(0, x), highest)
    total = ge.ReduceLogSumExp(ge.Sub(x, shift), axes, keep_dims=keepdim)
    return ge.Add(total, shift if keepdim else ge.Squeeze(shift, axis=axes))


# How LpNormV2 writes the infinite norms.
_INFINITE = {float("inf"): 2147483647.0, float("-inf"): -2147483648.0}


@converter(aten.linalg_vector_norm.default)
def linalg_vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None, meta_outputs):
    """Return the p-norm over some dims, or all."""
    if torch_dtype(self).is_complex or not self.rank:
        raise NotImplementedError("a complex tensor, or one without dims")
    x = self if dtype is None else cast(self, meta_outputs.dtype)
    p = _INFINITE.get(float(ord), float(ord))
    return ge.LpNormV2(x, p=p, axes=dims_of(dim, x.rank), keepdim=keepdim, epsilon=0.0)


@converter(aten.cumsum.default)
def cumsum(self, dim, *, dtype=None, meta_outputs):
    """Return running sums."""
    return _scan(ge.Cumsum, self, dim, meta_outputs)


@converter(aten.cumprod.default)
def cumprod(self, dim, *, dtype=None, meta_outputs):
    """Return running products."""
    return _scan(ge.Cumprod, self, dim, meta_outputs)


@converter(aten.logcumsumexp.default)
def logcumsumexp(self, dim, *, meta_outputs):
    """Return running log of sums of exponentials."""
    return _scan(ge.CumulativeLogsumexp, self, dim, meta_outputs)


def _scan(op, x, dim, spec):
    x = cast(x, spec.dtype)
    return op(x, dim_of(dim, x.rank)) if x.rank else ge.Identity(x)


@converter(aten.cummax.default)
def cummax(self, dim):
    """Return the running maximum and its index."""
    if not self.rank:
        return alone(self)
    value, index = ge.Cummax(self, dim=dim_of(dim, self.rank))
    return value, cast(index, INT64)


@converter(aten.cummin.default)
def cummin(self, dim):
    """Return the running minimum and its index."""
    if not self.rank:
        return alone(self)
    value, index = ge.Cummin(self, axis=dim_of(dim, self.rank))
    return value, cast(index, INT64)


@converter(aten.histc.default)
def histc(self, bins=100, min=0, max=0):
    """Count values in equal bins; equal ends mean the range of the data."""
    if not all(isinstance(number, int | float) for number in (bins, min, max)):
        raise NotImplementedError("the bins are symbolic")
    return cast(ge.Histogram(self, bins=bins, min=float(min), max=float(max)), self.dtype)
