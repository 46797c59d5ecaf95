"""ATen's distances between the rows of matrices, and their gradients."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import like, static_sizes
from torchair.convert.base.registry import converter

aten = torch.ops.aten


@converter(aten._cdist_forward.default)
def cdist(x1, x2, p, compute_mode):
    """Return the p-norms of the differences of all rows of one matrix and all rows of the other."""
    return ge.Cdist(x1, x2, p=p)


@converter(aten._cdist_backward.default)
def cdist_backward(grad, x1, x2, p, cdist):
    """Return the gradient of the first matrix."""
    return ge.CdistGrad(grad, x1, x2, cdist, p=p)


@converter(aten._pdist_forward.default)
def pdist(self, p=2):
    """Return the p-norms of the differences of all pairs of rows, in order."""
    return ge.Pdist(self, p=float(p))


@converter(aten._pdist_backward.default)
def pdist_backward(grad, self, p, pdist):
    """Return the gradient: pairs in order are the upper triangle of a table of two equal matrices."""
    shape = static_sizes(self)
    if shape is None:
        raise NotImplementedError("the number of rows is symbolic")
    rows = shape[0]
    upper = torch.triu_indices(rows, rows, 1)
    places = torch.cat([upper[0] * rows + upper[1], upper[1] * rows + upper[0]])
    empty = ge.Fill([rows * rows], like(0, self))
    whole = [
        ge.Reshape(
            ge.ScatterElements(empty, ge.Const(places), ge.ConcatV2([part, part], 0, N=2), axis=0),
            [rows, rows],
        )
        for part in (grad, pdist)
    ]
    return ge.CdistGrad(whole[0], self, self, whole[1], p=p)
