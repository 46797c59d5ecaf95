"""Compute the core of attention on [batch, heads, sequence, dim]: softmax(scale · q @ k.T + shift) @ v,
without hidden positions.

If `scaled_dot_product_attention` can express a call, it is used, so that the device's own fused kernel runs.
A row with only hidden positions is 0, and its log-sum-exp -inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from torchair.core import dtypes
from torchair.core.torch_private.fake.fake_tensors import statically_known_true
from torchair.ops.numerics.formats import store, wide

aten = torch.ops.aten


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values as [batch, heads, sequence, dim], and the modifications of their scores."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    shift: torch.Tensor | None
    # True where a key is visible.
    seen: torch.Tensor | None
    is_causal: bool
    scale: float

    @property
    def mask(self) -> torch.Tensor | None:
        """Return shift and hidden positions as one mask of `scaled_dot_product_attention`."""
        if self.shift is None or self.seen is None:
            return self.shift if self.seen is None else self.seen
        return torch.where(self.seen, self.shift.to(self.query.dtype), -torch.inf)

    @property
    def is_grouped(self) -> bool:
        """Whether several query heads share one key head."""
        return bool(self.query.shape[1] != self.key.shape[1])

    @property
    def whole(self) -> Heads:
        """Repeat key and value heads for every query head, and return an additive mask of at least rank 2."""
        key, value, shift = self.key, self.value, self.mask
        if self.is_grouped:
            repeats = self.query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        if shift is not None and shift.dtype == torch.bool:
            shift = torch.where(shift, 0.0, -torch.inf).to(self.query.dtype)
        return Heads(self.query, key, value, shift, None, self.is_causal, self.scale)


def attend(heads: Heads) -> torch.Tensor:
    """Return the result of attention."""
    return F.scaled_dot_product_attention(
        heads.query, heads.key, heads.value,
        attn_mask=heads.mask, is_causal=heads.is_causal, scale=heads.scale, enable_gqa=heads.is_grouped,
    )  # fmt: skip


def attend_with_lse(heads: Heads) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result, and the float32 log-sum-exp of each row of scores as [batch, heads, sequence, 1]."""
    if _has_fused_lse(heads):
        full = heads.whole
        q, k, v = map(in_rows, (full.query, full.key, full.value))
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, full.is_causal, attn_mask=full.shift, scale=full.scale
        )
        lse = lse.unsqueeze(3)
        return out, lse if heads.seen is None else torch.where(heads.seen.any(-1, True), lse, -torch.inf)
    return attend(heads), torch.logsumexp(scores(heads.whole), 3, keepdim=True)


def _has_fused_lse(heads: Heads) -> bool:
    """Return whether the CPU kernel applies: it needs equal widths, and divides by the number of rows."""
    if heads.query.device.type != "cpu" or heads.query.shape[3] != heads.value.shape[3]:
        return False
    return all(size != 0 for x in (heads.query, heads.key) for size in x.shape)


def in_rows(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with a dense last dim: the kernels of the CPU assume that without a check."""
    return x if statically_known_true(x.stride(-1) == 1) else x.contiguous()


def with_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Return the result with one more logit per head, without a value, in the softmax."""
    return (wide(out) * torch.sigmoid(lse - wide(sink).reshape(1, -1, 1, 1))).to(out.dtype)


def attend_quantized(heads: Heads, scale: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Multiply the values with probabilities that are stored as probability · scale."""
    full = heads.whole
    stored = store(probabilities(full) * wide(scale), dtypes.to_ge(kind))
    return wide(stored) @ wide(full.value)


def probabilities(full: Heads) -> torch.Tensor:
    """Return the softmax of the scores in float32, 0 in rows without visible keys."""
    made = scores(full)
    return torch.where(made == -torch.inf, 0.0, torch.softmax(made, 3))


def scores(heads: Heads) -> torch.Tensor:
    """Return scale * q @ k.T + shift in float32, -inf at hidden positions."""
    made = heads.scale * (wide(heads.query) @ wide(heads.key).mT)
    made = made if heads.shift is None else made + heads.shift
    return (
        made.masked_fill(~causal(made.shape[2], made.shape[3], 0, made.device), -torch.inf)
        if heads.is_causal
        else made
    )


def causal(rows: Any, columns: Any, offset: Any, device: torch.device) -> torch.Tensor:
    """Return True where column <= row + offset."""
    return torch.arange(columns, device=device) <= torch.arange(rows, device=device)[:, None] + offset


def gradients_of(
    heads: Heads,
    dy: torch.Tensor,
    out: torch.Tensor,
    statistics: tuple[torch.Tensor, torch.Tensor],
    dropout: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Compute (dq, dk, dv, dscores) explicitly; gradients of heads that share a key are summed. Unused
    results are not computed.

    `statistics` are the maximum and the sum of the softmax, which are exact for low scores, unlike their
    combination. `dropout` has the factors of dropout.
    """
    full = heads.whole
    made = scores(full)
    top, total = (x[..., None] for x in statistics)
    p = torch.where(made == -torch.inf, 0.0, torch.exp(made - top) / total)
    grad = wide(dy)
    dp = grad @ wide(full.value).mT
    dropped, dp = (p, dp) if dropout is None else (p * dropout, dp * dropout)
    ds = p * (dp - (grad * wide(out)).sum(3, keepdim=True))
    dq = full.scale * (ds @ wide(full.key))
    dk, dv = full.scale * (ds.mT @ wide(full.query)), dropped.mT @ grad
    if heads.is_grouped:
        dk, dv = (x.unflatten(1, (heads.key.shape[1], -1)).sum(2) for x in (dk, dv))
    return [*(x.to(heads.query.dtype) for x in (dq, dk, dv)), ds]


def fused_gradients(
    heads: Heads, dy: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> list[torch.Tensor]:
    """Compute (dq, dk, dv) with the fused kernel of the CPU."""
    q, k, v = map(in_rows, (heads.query, heads.key, heads.value))
    mask = heads.whole.shift
    causal_only, scale = heads.is_causal, heads.scale
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dy, q, k, v, out, lse, 0.0, causal_only, attn_mask=mask, scale=scale
    )
