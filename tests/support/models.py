"""Small models that many tests compile."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, hidden: int, outputs: int, *, norm: bool = False) -> nn.Module:
    """Return a perceptron with GELU, and with LayerNorm if asked for, in evaluation mode."""
    middle = [nn.GELU(), nn.LayerNorm(hidden)] if norm else [nn.GELU()]
    return nn.Sequential(nn.Linear(inputs, hidden), *middle, nn.Linear(hidden, outputs)).eval()
