"""Distances between the rows of matrices."""

from __future__ import annotations

import torch

from torchair.engine.registry import kernel

aten = torch.ops.aten


@kernel("Cdist")
def cdist(x1, x2, *, p):
    """The p-norms of the differences of all rows of one matrix and all rows of the other."""
    return aten._cdist_forward(x1, x2, p, None)


@kernel("CdistGrad")
def cdist_grad(grad, x1, x2, cdist, *, p):
    """The gradient of the first matrix."""
    return aten._cdist_backward(grad.contiguous(), x1, x2, p, cdist)


@kernel("Pdist")
def pdist(x, *, p):
    """The p-norms of the differences of all pairs of rows, in order."""
    return aten._pdist_forward(x.contiguous(), p)
