"""Distances between the rows of matrices."""

from __future__ import annotations

import torch

from torchair.engine.registry import kernel

aten = torch.ops.aten


@kernel("Cdist")
def cdist(x1, x2, *, p):
    """Return the p-norms of the differences of all rows of one matrix and all rows of the other."""
    return aten._cdist_forward(x1, x2, p, None)


@kernel("CdistGrad")
def cdist_grad(grad, x1, x2, cdist, *, p):
    """Return the gradient of the first matrix."""
    parts = (part.contiguous() for part in (grad, x1, x2))
    return aten._cdist_backward(*parts, p, cdist.contiguous())


@kernel("Pdist")
def pdist(x, *, p):
    """Return the p-norms of the differences of all pairs of rows, in order."""
    return aten._pdist_forward(x.contiguous(), p)
