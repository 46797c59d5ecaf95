"""Convert ops of the `npu` library that are several IR ops, or an IR op of another family."""

from __future__ import annotations

from torchair import ge
from torchair.convert.aten.norm import filled
from torchair.convert.base.operands import FLOAT, INT32, as_type, cast, size_of
from torchair.convert.base.registry import converter
from torchair.core import dtypes
from torchair.core.dtypes import LACKING
from torchair.ops.numerics.formats import UINT8, ir_type


@converter("npu.batch_norm_reduce.default")
def batch_norm_reduce(input, eps):
    """Return the sums and sums of squares of each channel, in float32."""
    x = cast(input, FLOAT)
    dims = [0, *range(2, input.rank)]
    return ge.ReduceSum(x, dims, keep_dims=False), ge.ReduceSum(ge.Square(x), dims, keep_dims=False)


@converter("torchair.batch_norm_gather_stats_update_functional.default")
def batch_norm_gather_stats(
    input, mean, invstd, running_mean, running_var, momentum, eps, counts, *, meta_outputs
):
    """Sum over the ranks, then compute the statistics of all of them."""
    wide_mean, weights = cast(mean, FLOAT), ge.Unsqueeze(cast(counts, FLOAT), axes=[1])
    variance = ge.Sub(ge.Reciprocal(ge.Square(cast(invstd, FLOAT))), cast(eps, FLOAT))
    sums = [
        ge.ReduceSum(ge.Mul(part, weights), [0], keep_dims=False)
        for part in (wide_mean, ge.Add(variance, ge.Square(wide_mean)))
    ]
    total = cast(ge.ReduceSum(weights, [0], keep_dims=False), INT32)
    running = [
        filled(start, FLOAT, size_of(mean, 1)) if part is None else cast(part, FLOAT)
        for part, start in ((running_mean, 0.0), (running_var, 1.0))
    ]
    result = ge.SyncBatchNormGatherStats(*sums, total, *running, momentum=momentum, eps=eps)
    return [cast(part, spec.dtype) for part, spec in zip(result, meta_outputs, strict=True)]


@converter("npu.batch_norm_gather_stats_update.default")
def batch_norm_gather_stats_update(
    input, mean, invstd, running_mean, running_var, momentum, eps, counts, *, meta_outputs
):
    """Compute the same, and write back the running statistics."""
    kinds = [*meta_outputs, *(mean if part is None else part for part in (running_mean, running_var))]
    result = batch_norm_gather_stats(
        input, mean, invstd, running_mean, running_var, momentum, eps, counts, meta_outputs=kinds
    )
    for part, new in zip((running_mean, running_var), result[2:], strict=True):
        if part is not None:
            ge.Assign(part, new)
    return result[:2]


@converter("npu._npu_dtype_cast.default", "npu._npu_dtype_cast_backward.default")
def dtype_cast_plain(self, dtype):
    """Cast to a torch dtype."""
    return ge.Cast(self, dst_type=dtypes.to_ge(dtype))


@converter("npu.npu_dtype_cast.default", "npu.npu_dtype_cast_backward.default")
def dtype_cast(self, dtype, input_dtype=None, forward_dtype=None):
    """Cast between any two types; those that torch lacks are bytes outside the IR."""
    kind, source = ir_type(dtype), ir_type(input_dtype)
    result = cast(as_type(self, source) if source in LACKING else self, kind)
    return as_type(result, UINT8) if kind in LACKING else result


@converter("npu.npu_gather_backward.default")
def gather_backward(grad, self_size, dim, index, sparse_grad):
    """Return the dense gradient of gather: additions into zeros."""
    return ge.ScatterElements(ge.Fill(self_size, cast(0, grad.dtype)), index, grad, axis=dim, reduction="add")


@converter("npu.npu_prefetch.default")
def prefetch(self, dependency, max_size, offset=0):
    """Load memory after `dependency`; nothing reads the result."""
    ge.Cmo(self, max_size=max_size, type=_PREFETCH, offset=offset or None, dependencies=[dependency])


# The code of the cache operation that loads early.
_PREFETCH = 6
