"""Compute attention for training: the result with the statistics of its softmax, and the gradients from them.

Statistics are float32 and repeated eight times: [B, N, S, 8], packed [T, N, 8]; P = exp(score - max) / sum.
Random numbers are drawn outside: dropout needs its mask as an argument.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.core.errors import UnsupportedOp
from torchair.core.kernel_params import Ints
from torchair.ops.npu.attention.infer_attention import core, from_the_start, key_tokens, query_tokens
from torchair.ops.npu.common.attention_core import (
    Heads,
    attend,
    attend_with_lse,
    fused_gradients,
    gradients_of,
    probabilities,
    scores,
    with_sink,
)
from torchair.ops.npu.common.op_spec import NpuOp
from torchair.ops.npu.common.sequences import (
    FAR,
    PACKED,
    as_column,
    band,
    both,
    entry_and_leaving,
    from_heads,
    numbers,
    to_heads,
    tokens_that_are,
)
from torchair.ops.numerics.formats import wide

_REPEATS = 8
# Causal from the end, and every row sees the first keys of its sequence.
_PREFIXES = (5, 6)


def training_heads(
    query, key, value, shift, mask, prefix, ends, *, heads, layout, scale, sparse
) -> tuple[Heads, str]:
    """Return the operands of the attention core, and the layout."""
    entry, _ = entry_and_leaving(layout, query, heads)
    q = to_heads(query, entry, heads)
    is_flat = entry in ("BSH", "SBH")
    kv_heads = key.shape[2] * heads // query.shape[2] if is_flat else 0
    k, v = (to_heads(x, entry, kv_heads) for x in (key, value))
    queries = query_tokens(entry, q.shape[2], ends[0], None, q.device)
    keys = key_tokens(entry, k.shape[0], k.shape[2], ends[1], None, q.device, False)
    if sparse[2] not in _PREFIXES:
        return core(q, k, v, shift, mask, queries, keys, sparse, scale), entry
    lengths = numbers(prefix, q.device)
    assert lengths is not None, "these modes have a prefix"
    made = core(q, k, v, shift, None, queries, keys, (FAR, FAR, 0), scale)
    below = as_column(keys.position) < lengths.reshape(-1, 1, 1, 1)
    later = band(queries, keys, True, FAR, 0)
    seen = both(tokens_that_are(queries, keys), below if later is None else below | later)
    return Heads(q, k, v, made.shift, seen, False, scale), entry


def dropout_factors(drop_mask, keep_prob, shape):
    """Return the factors of dropout: bits (1 keeps, the lowest first) divided by keep_prob."""
    if keep_prob == 1:
        return None
    if drop_mask is None:
        raise UnsupportedOp("attention cannot draw its own dropout mask", next="pass dropout_mask")
    count = shape[0] * shape[1] * shape[2] * shape[3]
    bits = (drop_mask.reshape(-1, 1) >> torch.arange(8, device=drop_mask.device, dtype=torch.uint8)) & 1
    return bits.reshape(-1)[:count].reshape(shape).float() / keep_prob


def repeated(x, layout):
    """Repeat a statistic [B, N, S, 1] eight times, packed [T, N, 8]."""
    x = x.expand(*x.shape[:3], _REPEATS)
    return (x.squeeze(0).transpose(0, 1) if layout in PACKED else x).contiguous()


def single(x, layout):
    """Invert `repeated`, without the last dim: [B, N, S]."""
    return x[..., 0].t().unsqueeze(0) if layout in PACKED else x[..., 0]


def statistics(heads: Heads, lse, sink):
    """Return (max, sum) of the softmax of the scores, [B, N, S, 1]; the sum includes a sink."""
    made = scores(heads.whole)
    # An additional hidden column, so that the maximum exists without keys.
    top = F.pad(made, (0, 1), value=-torch.inf).amax(3, keepdim=True)
    # With a shift, scores may be close to the lowest float: the log-sum-exp then loses the sum.
    total = torch.exp(lse - top) if heads.shift is None else torch.exp(made - top).sum(3, keepdim=True)
    total = torch.where(top == -torch.inf, 0.0, total)
    if sink is None:
        return top, total
    sink = wide(sink).reshape(1, -1, 1, 1)
    both_tops = torch.maximum(top, sink)
    return both_tops, total * torch.exp(top - both_tops) + torch.exp(sink - both_tops)


def flash(query, key, value, shift, drop_mask, mask, prefix, ends, sink, *, keep_prob, **how):
    """Return (max, sum, result)."""
    heads, layout = training_heads(query, key, value, shift, mask, prefix, ends, **how)
    out, lse = attend_with_lse(heads)
    full = heads.whole
    if keep_prob != 1:
        dropout = dropout_factors(drop_mask, keep_prob, (*full.query.shape[:3], full.key.shape[2]))
        assert dropout is not None, "dropout has a mask"
        out = probabilities(full) * dropout @ wide(full.value)
    out = out if sink is None else with_sink(out, lse, sink)
    made = from_heads(out, layout).to(query.dtype)
    return *(repeated(x, layout) for x in statistics(heads, lse, sink)), made


def flash_attention_score(
    query, key, value, real_shift, drop_mask, padding_mask, atten_mask, prefix, actual_seq_qlen,
    actual_seq_kvlen, q_start_idx: Ints | None, kv_start_idx: Ints | None, *, scale_value=1.0, keep_prob=1.0,
    pre_tockens=FAR, next_tockens=FAR, head_num, input_layout, inner_precise=1, sparse_mode=0,
):  # fmt: skip
    """Return (max, sum, an empty tensor, the result)."""
    from_the_start("FlashAttentionScore", q_start_idx, kv_start_idx)
    top, total, out = flash(
        query, key, value, real_shift, drop_mask, atten_mask, prefix, (actual_seq_qlen, actual_seq_kvlen),
        None, keep_prob=keep_prob, heads=head_num, layout=input_layout, scale=scale_value,
        sparse=(pre_tockens, next_tockens, sparse_mode),
    )  # fmt: skip
    return top, total, query.new_empty(0), out


def fusion_attention_with_sink(
    query, key, value, head_num, input_layout, pse, atten_mask, scale, keep_prob, pre_tockens, next_tockens,
    prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode, sink, dropout_mask,
):  # fmt: skip
    """Compute attention with one more logit per head; the results are in torch's order."""
    top, total, out = flash(
        query, key, value, pse, dropout_mask, atten_mask, prefix, (actual_seq_qlen, actual_seq_kvlen), sink,
        keep_prob=keep_prob, heads=head_num, layout=input_layout, scale=scale,
        sparse=(pre_tockens, next_tockens, sparse_mode),
    )  # fmt: skip
    return top, total, query.new_empty(0), out


def gradients(query, key, value, dy, shift, mask, statistic, out, prefix, ends, sink, precise, **how):
    """Return (dq, dk, dv, dshift, dsink); arguments that are None have an empty gradient. With a shift, the
    fused kernel of the CPU is not `precise`, because it needs the log-sum-exp.
    """
    heads, layout = training_heads(query, key, value, shift, mask, prefix, ends, **how)
    top, total = (None if x is None else single(x, layout) for x in statistic)
    if top is None or total is None:
        out, lse = attend_with_lse(heads)
        top = lse.squeeze(3)
        total = torch.ones_like(top)
    else:
        out = attend(heads) if out is None else to_heads(out, layout, how["heads"])
    dy = to_heads(dy, layout, how["heads"])
    # Rows that see no keys: their probabilities are 0, whatever this value is.
    lse = torch.where(top == -torch.inf, 0.0, top + torch.log(total))
    fuses = query.device.type == "cpu" and not heads.is_grouped and sink is None
    fuses = fuses and heads.query.shape[3] == heads.value.shape[3]
    if fuses and shift is None:
        made = fused_gradients(heads, dy, out.to(dy.dtype), lse)
        return *(from_heads(x, layout) for x in made), query.new_empty(0), query.new_empty(0)
    *made, ds = gradients_of(heads, dy, out, (top, total))
    made = fused_gradients(heads, dy, out.to(dy.dtype), lse) if fuses and not precise else made
    dshift = query.new_empty(0) if shift is None else _summed(ds, shift)
    dsink = query.new_empty(0)
    if sink is not None:
        delta = (wide(dy) * wide(out)).sum(3)
        dsink = -(torch.exp(wide(sink).reshape(1, -1, 1) - lse) * delta).sum((0, 2)).to(sink.dtype)
    return *(from_heads(x, layout) for x in made), dshift, dsink


def _summed(ds, shift):
    if shift.shape != ds.shape and shift.ndim == 4 and ds.shape[2:] != shift.shape[2:]:
        raise UnsupportedOp("attention over packed sequences has no gradient of pse_shift")
    return ds.sum_to_size(shift.shape).to(shift.dtype)


def flash_attention_score_grad(
    query, key, value, dy, pse_shift, drop_mask, padding_mask, atten_mask, softmax_max, softmax_sum,
    softmax_in, attention_in, prefix, actual_seq_qlen, actual_seq_kvlen, q_start_idx: Ints | None,
    kv_start_idx: Ints | None, *, scale_value=1.0, keep_prob=1.0, pre_tockens=65536, next_tockens=65536,
    head_num, input_layout, inner_precise=1, sparse_mode=0,
):  # fmt: skip
    """Return (dq, dk, dv, dshift)."""
    from_the_start("FlashAttentionScoreGrad", q_start_idx, kv_start_idx)
    return fusion_attention_grad(
        query, key, value, dy, head_num, input_layout, pse_shift, atten_mask, softmax_max, softmax_sum,
        attention_in, scale_value, keep_prob, pre_tockens, next_tockens, prefix, actual_seq_qlen,
        actual_seq_kvlen, sparse_mode, None, inner_precise,
    )[:4]  # fmt: skip


def fusion_attention_grad(
    query, key, value, dy, head_num, input_layout, pse, atten_mask, softmax_max, softmax_sum, attention_in,
    scale_value, keep_prob, pre_tockens, next_tockens, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode,
    sink, inner_precise,
):  # fmt: skip
    """Return (dq, dk, dv, dshift, dsink)."""
    if keep_prob != 1:
        raise UnsupportedOp(
            "attention with dropout has no gradient here: the op has no argument for the mask"
        )
    return gradients(
        query, key, value, dy, pse, atten_mask, (softmax_max, softmax_sum), attention_in, prefix,
        (actual_seq_qlen, actual_seq_kvlen), sink, inner_precise == 0, heads=head_num, layout=input_layout,
        scale=scale_value, sparse=(pre_tockens, next_tockens, sparse_mode),
    )  # fmt: skip


# Hints, and arguments for the random numbers of the device.
_IGNORED = ("padding_mask", "inner_precise", "gen_mask_parallel", "sync", "softmax_layout", "seed", "offset")
_ZEROS = (0, 0, 0)
_FORWARD = {"real_shift": "pse", "drop_mask": "dropout_mask", "scale_value": "scale"}
ROWS = (
    NpuOp(
        "npu_fusion_attention", "", fusion_attention_with_sink, outputs=(3, 0, 1, 2), extra=_ZEROS,
        when=lambda given: given["sink"] is not None, ignored=_IGNORED,
    ),
    NpuOp(
        "npu_fusion_attention", "FlashAttentionScore", flash_attention_score, _FORWARD, outputs=(3, 0, 1, 2),
        extra=_ZEROS, ignored=(*_IGNORED, "sink"),
    ),
    NpuOp(
        "npu_fusion_attention_grad", "", fusion_attention_grad,
        when=lambda given: given["sink"] is not None, ignored=(*_IGNORED, "softmax_in", "numels"),
    ),
    # The gradient of a missing sink is never read.
    NpuOp(
        "npu_fusion_attention_grad", "FlashAttentionScoreGrad", flash_attention_score_grad,
        {"pse_shift": "pse"}, outputs=(0, 1, 2, 3), extra=(None,),
        when=lambda given: given["pse"] is not None, ignored=(*_IGNORED, "sink", "numels"),
    ),
    # Without shift and sink, both gradients are the same empty tensor.
    NpuOp(
        "npu_fusion_attention_grad", "FlashAttentionScoreGrad", flash_attention_score_grad,
        {"pse_shift": "pse"}, outputs=(0, 1, 2, 3, 3), ignored=(*_IGNORED, "sink", "numels"),
    ),
)  # fmt: skip
