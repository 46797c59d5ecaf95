"""Select the next token: top-k and top-p filters, and sampling with given noise.

These ops have no IR op: they are traced as ATen ops.
"""

from __future__ import annotations

import torch

NEVER = float("-inf")


def top_k_top_p(logits, p, k):
    """Return logits [B, V] with -inf except for the k[b] largest and, of these, the smallest set with p[b] of
    the probability; the largest always stays.
    """
    ordered, order = logits.sort(-1)
    size = logits.shape[-1]
    kth = (size - k.to(torch.int64)).clamp(0, size - 1).unsqueeze(-1)
    ordered = ordered.masked_fill(ordered < ordered.gather(-1, kth), NEVER)
    below = ordered.float().softmax(-1).cumsum(-1)
    dropped = below <= 1 - p.float().unsqueeze(-1)
    is_largest = torch.arange(size, device=logits.device) == size - 1
    ordered = ordered.masked_fill(dropped & ~is_largest, NEVER)
    return torch.empty_like(logits).scatter(-1, order, ordered)


def top_k_top_p_sample(logits, top_k, top_p, *, q=None, eps=1e-8, is_need_logits=False, top_k_guess=32):
    """Return (a token per row, the filtered logits if requested): the largest probability, divided by noise
    `q` if given. Exponential noise makes the token a sample.
    """
    filtered = top_k_top_p(logits.float(), top_p, top_k)
    chances = filtered.softmax(-1)
    chosen = (chances if q is None else chances / (q.float() + eps)).argmax(-1)
    return chosen, filtered if is_need_logits else filtered.new_empty(0)


ROWS = ()
COMPOSITE = {"npu_top_k_top_p": top_k_top_p, "npu_top_k_top_p_sample": top_k_top_p_sample}
