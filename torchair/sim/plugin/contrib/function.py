"""Provide `torch_npu.contrib.function`: functions in forms that the hardware prefers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = [
    "dropout_with_byte_mask",
    "fuse_add_softmax_dropout",
    "matmul_transpose",
    "npu_fast_condition_index_put",
    "roll",
]


def matmul_transpose(tensor1: torch.Tensor, tensor2: torch.Tensor) -> torch.Tensor:
    """Return the product of a matrix with the transpose of another."""
    return tensor1 @ tensor2.transpose(-2, -1)


def dropout_with_byte_mask(
    input1: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Apply dropout; on the hardware, the mask has one byte per value."""
    return F.dropout(input1, p, training, inplace)


def fuse_add_softmax_dropout(
    training: bool,
    dropout: torch.nn.Module,
    attn_mask: torch.Tensor,
    attn_scores: torch.Tensor,
    attn_head_size: float,
    p: float = 0.5,
    dim: int = -1,
) -> torch.Tensor:
    """Return the attention weights; scores are multiplied with `attn_head_size` first."""
    probabilities = torch.add(attn_mask, attn_scores, alpha=attn_head_size).softmax(dim)
    return F.dropout(probabilities, p) if training else dropout(probabilities)


def npu_fast_condition_index_put(x: torch.Tensor, condition: torch.Tensor, value: float) -> torch.Tensor:
    """Return `x` with `x[condition] = value`, without synchronizing to count the elements."""
    assert condition.dtype == torch.bool, f"condition must be bool, got {condition.dtype}"
    return x.masked_fill(condition, value)


def roll(input1: torch.Tensor, shifts: int | tuple[int, ...], dims: int | tuple[int, ...]) -> torch.Tensor:
    """`torch.roll`."""
    return torch.roll(input1, shifts, dims)
