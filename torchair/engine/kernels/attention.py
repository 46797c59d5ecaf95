"""Attention: out = softmax(scale * q @ k.T + shift, hidden positions left out) @ v.

Everything ends in `scaled_dot_product_attention`, so that the device's own fused kernel runs. Rows whose
every position is hidden are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from torchair.core.errors import UnsupportedOp
from torchair.engine.registry import kernel

aten = torch.ops.aten

# "No limit" of pre_tokens and next_tokens.
_FAR = 2147483647


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values as [batch, heads, sequence, dim], and what is done to their scores."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    shift: torch.Tensor | None
    # True where a key is seen.
    seen: torch.Tensor | None
    is_causal: bool
    scale: float

    @property
    def mask(self) -> torch.Tensor | None:
        """Shift and hidden positions as one mask of `scaled_dot_product_attention`."""
        if self.shift is None or self.seen is None:
            return self.shift if self.seen is None else self.seen
        return torch.where(self.seen, self.shift, -torch.inf)

    @property
    def is_grouped(self) -> bool:
        """Several query heads share one key head."""
        return self.query.shape[1] is not self.key.shape[1] and self.query.shape[1] != self.key.shape[1]

    @property
    def whole(self) -> Heads:
        """With a key and value head for every query head, and an additive mask of at least rank 2."""
        key, value, shift = self.key, self.value, self.mask
        if self.is_grouped:
            repeats = self.query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        if shift is not None and shift.dtype == torch.bool:
            shift = torch.where(shift, 0.0, -torch.inf).to(self.query.dtype)
        return Heads(self.query, key, value, shift, None, self.is_causal, self.scale)


def attend(heads: Heads) -> torch.Tensor:
    """The result of attention."""
    return F.scaled_dot_product_attention(
        heads.query, heads.key, heads.value,
        attn_mask=heads.mask, is_causal=heads.is_causal, scale=heads.scale, enable_gqa=heads.is_grouped,
    )  # fmt: skip


def attend_with_lse(heads: Heads) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the float32 log-sum-exp of each row of scores as [batch, heads, sequence, 1]."""
    if heads.query.device.type == "cpu" and heads.query.shape[3] == heads.value.shape[3]:
        full = heads.whole
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            full.query, full.key, full.value, 0.0, full.is_causal, attn_mask=full.shift, scale=full.scale
        )
        return out, lse.unsqueeze(3)
    return attend(heads), torch.logsumexp(scores(heads.whole), 3, keepdim=True)


def scores(heads: Heads) -> torch.Tensor:
    """scale * q @ k.T + shift in float32, hidden positions -inf."""
    made = heads.scale * (heads.query.float() @ heads.key.float().mT)
    made = made if heads.shift is None else made + heads.shift
    return (
        made.masked_fill(~causal(made.shape[2], made.shape[3], 0, made.device), -torch.inf)
        if heads.is_causal
        else made
    )


def causal(rows: Any, columns: Any, offset: Any, device: torch.device) -> torch.Tensor:
    """True where column <= row + offset."""
    return torch.arange(columns, device=device) <= torch.arange(rows, device=device)[:, None] + offset


def band(
    rows: Any, columns: Any, offset: Any, before: int, after: int, device: torch.device
) -> torch.Tensor | None:
    """True where -before <= column - row - offset <= after; None when that is everywhere."""
    if before >= _FAR and after >= _FAR:
        return None
    distance = torch.arange(columns, device=device) - torch.arange(rows, device=device)[:, None] - offset
    return (distance >= -before) & (distance <= after)


def both(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    """Positions that both conditions see."""
    return a if b is None else b if a is None else a & b


def masked(query, key, value, shift, mask, lengths, scale, pre_tokens, next_tokens, sparse_mode) -> Heads:
    """Apply GE's mask modes and key lengths (see `sparse_mode` in the attention ops' documentation)."""
    rows, columns, device = query.shape[2], key.shape[2], query.device
    seen = None if mask is None else four_dims(~mask.bool())
    if sparse_mode == 0 and mask is not None:
        seen = both(seen, band(rows, columns, 0, pre_tokens, next_tokens, device))
    elif sparse_mode == 2:
        seen = None
    elif sparse_mode == 3:
        seen = causal(rows, columns, columns - rows, device)
    elif sparse_mode == 4:
        seen = band(rows, columns, columns - rows, pre_tokens, next_tokens, device)
    if lengths is not None:
        known = torch.arange(columns, device=device) < lengths.reshape(-1, 1, 1, 1)
        seen = both(both(seen, causal(rows, columns, 0, device)) if sparse_mode == 2 else seen, known)
        sparse_mode = 0 if sparse_mode == 2 else sparse_mode
    if sparse_mode == 2 and shift is not None:
        seen, sparse_mode = causal(rows, columns, 0, device), 0
    return Heads(
        query, key, value, None if shift is None else four_dims(shift), seen, sparse_mode == 2, scale
    )


def four_dims(mask: torch.Tensor) -> torch.Tensor:
    """[S, S] and [B, S, S] masks as [B, 1, S, S]."""
    return mask if mask.ndim != 3 else mask.unsqueeze(1)


def to_heads(x: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """A tensor of a layout as [batch, heads, sequence, dim]."""
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.transpose(1, 2)
    if layout == "BSH":
        return x.unflatten(2, (heads, -1)).transpose(1, 2)
    raise UnsupportedOp(f"attention in the layout {layout} has no kernel", near="BNSD, BSND and BSH have")


def from_heads(x: torch.Tensor, layout: str) -> torch.Tensor:
    """[batch, heads, sequence, dim] as a layout."""
    if layout == "BNSD":
        return x
    if layout == "NBSD":
        return x.transpose(0, 1)
    return x.transpose(1, 2) if layout == "BSND" else x.transpose(1, 2).flatten(2)


def refuse(op: str, inputs: Sequence[Any]) -> None:
    """Inputs that change the result and have no definition here."""
    if any(value is not None for value in inputs):
        raise UnsupportedOp(f"{op} with quantised, paged, prefixed, padded or rotary inputs has no kernel")


def inference(query, key, value, shift, mask, rows, lengths, *, heads, layout, scale, sparse, lse):
    """(result, log-sum-exp [B, N, S, 1] or an empty tensor) of an inference op.

    `heads` are those of query and key, `sparse` is (pre_tokens, next_tokens, sparse_mode).
    """
    entry, _, leaving = layout.partition("_")
    query = to_heads(query, entry, heads[0])
    key, value = (to_heads(x, entry, heads[1] or heads[0]) for x in (key, value))
    made = masked(query, key, value, shift, mask, lengths, scale, *sparse)
    out, statistic = attend_with_lse(made) if lse else (attend(made), query.new_empty(0, dtype=torch.float32))
    if rows is not None:
        valid = torch.arange(out.shape[2], device=out.device)[:, None] < rows.reshape(-1, 1, 1, 1)
        out = torch.where(valid, out, 0.0)
    return from_heads(out, leaving or entry), statistic


@kernel("FusedInferAttentionScore")
def fused_infer_attention_score(
    query, key, value, pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv, dequant_scale1,
    quant_scale1, dequant_scale2, quant_scale2, quant_offset2, antiquant_scale, antiquant_offset, block_table,
    query_padding_size, kv_padding_size, key_antiquant_scale, key_antiquant_offset, value_antiquant_scale,
    value_antiquant_offset, key_shared_prefix, value_shared_prefix, actual_shared_prefix_len, query_rope,
    key_rope, key_rope_antiquant_scale, dequant_scale_query, learnable_sink, q_start_idx, kv_start_idx, *,
    num_heads, scale, pre_tokens, next_tokens, input_layout, num_key_value_heads, sparse_mode, inner_precise,
    softmax_lse_flag,
):  # fmt: skip
    """Attention with an optional log-sum-exp; quantised, paged and prefixed keys have no definition here."""
    refuse("FusedInferAttentionScore", [
        dequant_scale1, quant_scale1, dequant_scale2, quant_scale2, quant_offset2, antiquant_scale,
        antiquant_offset, block_table, query_padding_size, kv_padding_size, key_antiquant_scale,
        key_antiquant_offset, value_antiquant_scale, value_antiquant_offset, key_shared_prefix,
        value_shared_prefix, actual_shared_prefix_len, query_rope, key_rope, key_rope_antiquant_scale,
        dequant_scale_query, learnable_sink, q_start_idx, kv_start_idx,
    ])  # fmt: skip
    (key,), (value,) = key, value
    return inference(
        query, key, value, pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv,
        heads=(num_heads, num_key_value_heads), layout=input_layout, scale=scale,
        sparse=(pre_tokens, next_tokens, sparse_mode), lse=softmax_lse_flag,
    )  # fmt: skip


@kernel("PromptFlashAttention")
def prompt_flash_attention(
    query, key, value, pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv, deq_scale1,
    quant_scale1, deq_scale2, quant_scale2, quant_offset2, *, num_heads, scale_value, pre_tokens, next_tokens,
    input_layout, num_key_value_heads, sparse_mode, inner_precise,
):  # fmt: skip
    """Attention over whole prompts."""
    refuse("PromptFlashAttention", [deq_scale1, quant_scale1, deq_scale2, quant_scale2, quant_offset2])
    out, _ = inference(
        query, key, value, pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv,
        heads=(num_heads, num_key_value_heads), layout=input_layout, scale=scale_value,
        sparse=(pre_tokens, next_tokens, sparse_mode), lse=False,
    )  # fmt: skip
    return out


@kernel("FlashAttentionScoreGrad")
def flash_attention_score_grad(
    query, key, value, dy, pse_shift, drop_mask, padding_mask, atten_mask, softmax_max, softmax_sum,
    softmax_in, attention_in, prefix, actual_seq_qlen, actual_seq_kvlen, q_start_idx, kv_start_idx, *,
    scale_value, keep_prob, pre_tockens, next_tockens, head_num, input_layout, inner_precise, sparse_mode,
):  # fmt: skip
    """(dq, dk, dv, dpse) from the statistics of the forward pass: P = exp(score - max) / sum."""
    refuse("FlashAttentionScoreGrad", [
        drop_mask, padding_mask, softmax_in, prefix, actual_seq_qlen, actual_seq_kvlen, q_start_idx,
        kv_start_idx,
    ])  # fmt: skip
    assert keep_prob == 1, "dropout has no definition here"
    assert input_layout == "BNSD", "gradients are emitted for [batch, heads, sequence, dim]"
    heads = masked(
        query, key, value, pse_shift, atten_mask, None, scale_value, pre_tockens, next_tockens, sparse_mode
    )
    lse = softmax_max[..., 0] + torch.log(softmax_sum[..., 0])
    is_fused = query.device.type == "cpu" and not heads.is_grouped
    if is_fused and pse_shift is None:
        return *fused_gradients(heads, dy, attention_in, lse), query.new_empty(0)
    *gradients, ds = gradients_of(heads, dy, attention_in, lse)
    gradients = fused_gradients(heads, dy, attention_in, lse) if is_fused else gradients
    return *gradients, query.new_empty(0) if pse_shift is None else ds.sum_to_size(pse_shift.shape).to(
        pse_shift.dtype
    )


def fused_gradients(
    heads: Heads, dy: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> list[torch.Tensor]:
    """(dq, dk, dv) by the CPU's fused kernel."""
    q, k, v, mask = heads.query, heads.key, heads.value, heads.whole.shift
    causal_only, scale = heads.is_causal, heads.scale
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dy, q, k, v, out, lse, 0.0, causal_only, attn_mask=mask, scale=scale
    )


def gradients_of(heads: Heads, dy: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> list[torch.Tensor]:
    """(dq, dk, dv, dscores) written out; heads that share a key add up. What nobody reads is not computed."""
    full = heads.whole
    p = torch.exp(scores(full) - lse[..., None])
    grad = dy.float()
    ds = p * (grad @ full.value.float().mT - (grad * out.float()).sum(3, keepdim=True))
    dq = full.scale * (ds @ full.key.float())
    dk, dv = full.scale * (ds.mT @ full.query.float()), p.mT @ grad
    if heads.is_grouped:
        dk, dv = (x.unflatten(1, (heads.key.shape[1], -1)).sum(2) for x in (dk, dv))
    return [*(x.to(heads.query.dtype) for x in (dq, dk, dv)), ds]
