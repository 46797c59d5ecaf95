"""ATen's fused attention: GE's attention ops on [batch, heads, sequence, dim].

Training saves its statistics as log-sum-exp: `P = exp(score - lse)`, so GE's gradient gets `softmax_max =
lse` and `softmax_sum = 1`. ATen's CUDA variants return statistics and random states in their own form; they
are converted only if these results are not read.
"""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten.index import along, counted
from torchair.convert.base.operands import FLOAT, cast, like, pack, same_size, size_of, sizes
from torchair.convert.base.registry import converter
from torchair.core import dtypes
from torchair.ge.graph import Tensor
from torchair.ge.host import Host, is_symbol

aten = torch.ops.aten

# Modes of the mask: none or the whole given mask; causal from the top left.
_GIVEN, _CAUSAL = 1, 2
# GE requires this upper triangle in causal mode, whatever the sequence length.
_TRIANGLE = 2048
_HALVES = (torch.float16, torch.bfloat16)


def why_not(query, key, value, dropout_p, scale):
    """Return what GE's attention ops do not support, or None."""
    if isinstance(dropout_p, Tensor) or dropout_p != 0:
        return "it uses dropout"
    if isinstance(scale, Tensor):
        return "its scale is symbolic"
    if any(x.rank != 4 for x in (query, key, value)):
        return "its operands are not [batch, heads, sequence, dim]"
    return None


def has_op(query, key, wants_lse=False):
    """Return whether GE has an attention op for these operands.

    GE's ops have the number of heads and the scale as attributes, and no doubles; those that return a
    log-sum-exp accept only half precision.
    """
    numbers = [size for x in (query, key) for size in (sizes(x)[1], sizes(x)[3])]
    taken = _HALVES if wants_lse else (*_HALVES, torch.float32)
    return dtypes.to_torch(query.dtype) in taken and not any(is_symbol(size) for size in numbers)


def scores(query, key, attn_mask, is_causal, scale):
    """Return scale * q @ k.T + mask in at least float32, and the scale; hidden positions are -inf."""
    if not same_size(sizes(query)[1], sizes(key)[1]):
        raise NotImplementedError("heads share keys, and their number is symbolic")
    query, key = wide(query), wide(key)
    dim = size_of(query, 3)
    scale = dim**-0.5 if scale is None and isinstance(dim, int) else scale
    if scale is None:
        scale = ge.Div(like(1.0, query), ge.Sqrt(cast(dim, query.dtype)))
    scale = like(scale, query)
    result = ge.Mul(ge.BatchMatMul(query, key, adj_x2=True), scale)
    hidden = like(-torch.inf, query)
    if is_causal:
        rows, columns = along(counted(size_of(query, 2)), 0, 2), along(counted(size_of(key, 2)), 1, 2)
        result = ge.SelectV2(ge.LessEqual(columns, rows), result, hidden)
    if attn_mask is None:
        return result, scale
    if attn_mask.dtype == ge.DataType.DT_BOOL:
        return ge.SelectV2(attn_mask, result, hidden), scale
    return ge.Add(result, cast(attn_mask, result.dtype)), scale


def wide(x):
    """Cast half precision to float32."""
    return cast(x, FLOAT) if dtypes.to_torch(x.dtype) in _HALVES else x


def written_out(query, key, value, attn_mask, is_causal, scale):
    """Return (result, log-sum-exp) in plain IR ops, for calls that GE's attention ops do not support."""
    result, _ = scores(query, key, attn_mask, is_causal, scale)
    lse = ge.ReduceLogSumExp(result, [3], keep_dims=True)
    is_hidden = ge.Equal(lse, like(-torch.inf, lse))
    shares = ge.SelectV2(is_hidden, like(0.0, result), ge.SoftmaxV2(result, axes=[3]))
    out = cast(ge.BatchMatMul(shares, cast(value, shares.dtype)), query.dtype)
    return out, ge.Squeeze(lse, axis=[3])


def written_out_gradient(grad, query, key, value, out, lse, attn_mask, is_causal, scale):
    """Return the gradients of q, k and v in plain IR ops."""
    result, scale = scores(query, key, attn_mask, is_causal, scale)
    lse = ge.Unsqueeze(cast(lse, result.dtype), axes=[3])
    is_hidden = ge.Equal(lse, like(-torch.inf, lse))
    shares = ge.SelectV2(is_hidden, like(0.0, result), ge.Exp(ge.Sub(result, lse)))
    grad_wide, out_wide, value_wide = (cast(x, result.dtype) for x in (grad, out, value))
    back = ge.BatchMatMul(grad_wide, value_wide, adj_x2=True)
    own = ge.ReduceSum(ge.Mul(grad_wide, out_wide), [3], keep_dims=True)
    inner = ge.Mul(ge.Mul(shares, ge.Sub(back, own)), scale)
    dq = ge.BatchMatMul(inner, cast(key, result.dtype))
    dk = ge.BatchMatMul(inner, cast(query, result.dtype), adj_x1=True)
    dv = ge.BatchMatMul(shares, grad_wide, adj_x1=True)
    return [cast(x, query.dtype) for x in (dq, dk, dv)]


def condition_of(mask):
    """Return the condition of a mask that is 0 where it holds and -inf elsewhere; None for any other mask."""
    while mask.op.type in ("BroadcastTo", "Identity"):
        mask = mask.op.inputs[0]
    if mask.op.type != "SelectV2":
        return None
    condition, keep, hide = mask.op.inputs
    numbers = [x.meta.value if isinstance(x.meta, Host) else None for x in (keep, hide)]
    return condition if numbers == [0.0, -torch.inf] else None


def four_dims(x):
    """Return a mask with all four dims."""
    return x if x.rank == 4 else ge.Unsqueeze(x, axes=list(range(4 - x.rank)))


def masks(query, key, attn_mask, is_causal):
    """Return (pse_shift, atten_mask, sparse_mode): an additive mask, or a boolean one, true at hidden
    positions.
    """
    if attn_mask is None:
        triangle = ge.Triu(ge.Fill([_TRIANGLE, _TRIANGLE], ge.Const(True)), diagonal=1) if is_causal else None
        return None, triangle, _CAUSAL if is_causal else 0
    if is_causal:
        raise NotImplementedError("it has both a mask and is_causal")
    condition = attn_mask if attn_mask.dtype == ge.DataType.DT_BOOL else condition_of(attn_mask)
    last = [size_of(query, 2), size_of(key, 2)]
    if condition is not None and (condition.rank < 3 or sizes(condition)[-3] == 1):
        return None, spread(ge.LogicalNot(four_dims(condition)), [-1, 1, *last]), _GIVEN
    if attn_mask.dtype == ge.DataType.DT_BOOL:
        raise NotImplementedError("it has a boolean mask per head")
    return spread(cast(four_dims(attn_mask), query.dtype), [-1, sizes(query)[1], *last]), None, 0


def spread(mask, wanted):
    """Expand a mask to the full sizes that GE requires; -1 keeps a dim."""
    have = sizes(mask)
    small = [
        dim
        for dim, size in enumerate(wanted)
        if size != -1 and not is_symbol(have[dim]) and have[dim] == 1 and size != 1
    ]
    return (
        ge.BroadcastTo(mask, pack([size if dim in small else -1 for dim, size in enumerate(wanted)]))
        if small
        else mask
    )


def attention(query, key, value, attn_mask, dropout_p, is_causal, scale, wants_lse):
    """Return (result, log-sum-exp or None)."""
    reason = why_not(query, key, value, dropout_p, scale)
    if reason is not None:
        raise NotImplementedError(reason)
    if not has_op(query, key, wants_lse):
        return written_out(query, key, value, attn_mask, is_causal, scale)
    scale = sizes(query)[3] ** -0.5 if scale is None else scale
    pse, mask, mode = masks(query, key, attn_mask, is_causal)
    attrs = {
        "num_heads": sizes(query)[1],
        "num_key_value_heads": sizes(key)[1],
        "input_layout": "BNSD",
        "sparse_mode": mode,
    }
    if dtypes.to_torch(query.dtype) not in _HALVES:
        return ge.PromptFlashAttention(
            query, key, value, pse, mask, **attrs, scale_value=scale, inner_precise=2
        ), None
    # inner_precise 2: high precision, and rows whose every position is hidden are 0.
    out, lse = ge.FusedInferAttentionScore(
        query, [key], [value], pse, mask, **attrs, scale=scale, inner_precise=2, softmax_lse_flag=wants_lse
    )
    return out, ge.Squeeze(lse, axis=[3]) if wants_lse else None


@converter(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention_for_cpu(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None, used):
    """Return softmax(scale * q @ k.T + mask) @ v, and the log-sum-exp of its rows."""
    return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, used[1])


@converter(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_for_cpu_backward(
    grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None
):
    """Return the gradients of q, k and v."""
    reason = why_not(query, key, value, dropout_p, scale)
    if reason is not None:
        raise NotImplementedError(reason)
    if not has_op(query, key):
        return written_out_gradient(grad_out, query, key, value, out, logsumexp, attn_mask, is_causal, scale)
    scale = sizes(query)[3] ** -0.5 if scale is None else scale
    pse, mask, mode = masks(query, key, attn_mask, is_causal)
    # GE repeats each statistic eight times.
    softmax_max = ge.BroadcastTo(ge.Unsqueeze(logsumexp, axes=[3]), [-1, -1, -1, 8])
    dq, dk, dv, _ = ge.FlashAttentionScoreGrad(
        query, key, value, grad_out, pse, None, None, mask, softmax_max, ge.OnesLike(softmax_max), None, out,
        scale_value=scale, head_num=sizes(query)[1], input_layout="BNSD", sparse_mode=mode,
        pre_tockens=2147483647, next_tockens=2147483647,
    )  # fmt: skip
    return dq, dk, dv


def result_only(query, key, value, attn_bias, dropout_p, is_causal, scale, used):
    """Return the result alone; the other results of a CUDA kernel have no GE form."""
    if any(used[1:]):
        raise NotImplementedError("its statistics or random states are read")
    out, _ = attention(query, key, value, attn_bias, dropout_p, is_causal, scale, wants_lse=False)
    return [out] + [None] * (len(used) - 1)


@converter(aten._scaled_dot_product_flash_attention.default)
def flash_attention(
    query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None, used
):
    """Convert as for the CPU, without a mask."""
    return result_only(query, key, value, None, dropout_p, is_causal, scale, used)


@converter(aten._scaled_dot_product_efficient_attention.default)
def efficient_attention(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None, used
):
    """Convert as for the CPU."""
    return result_only(query, key, value, attn_bias, dropout_p, is_causal, scale, used)


@converter(aten._scaled_dot_product_cudnn_attention.default)
def cudnn_attention(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False,
    *, scale=None, used,
):  # fmt: skip
    """Convert as for the CPU."""
    return result_only(query, key, value, attn_bias, dropout_p, is_causal, scale, used)


@converter(aten._scaled_dot_product_fused_attention_overrideable.default)
def overrideable_attention(
    query,
    key,
    value,
    attn_bias=None,
    dropout_p=0.0,
    is_causal=False,
    return_debug_mask=False,
    *,
    scale=None,
    used,
):
    """Convert as for the CPU."""
    return result_only(query, key, value, attn_bias, dropout_p, is_causal, scale, used)
