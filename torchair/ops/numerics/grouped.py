"""Define `torchair::grouped_mm`: one matrix product per group of rows, for dtypes that torch's op lacks."""

from __future__ import annotations

import torch


@torch.library.custom_op("torchair::grouped_mm", mutates_args=())
def grouped_mm(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply rows `ends[g-1] : ends[g]` of `x` with `weight[g]`; rows after the last group are 0."""
    out = x.new_zeros(x.shape[0], weight.shape[2])
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            torch.mm(x[start:end], weight[group], out=out[start:end])
            start = end
    return out


@grouped_mm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])
