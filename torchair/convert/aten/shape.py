"""ATen ops that rearrange."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import dim_of
from torchair.convert.registry import converter
from torchair.convert.views import permutation

aten = torch.ops.aten


@converter(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def reshape(self, size):
    """Other sizes, same elements."""
    return ge.Reshape(self, size)


@converter(aten.permute.default)
def permute(self, dims):
    """The dims in another order."""
    return ge.Transpose(self, [dim_of(dim, self.rank) for dim in dims])


@converter(aten.t.default)
def t(self):
    """Rows and columns swapped."""
    return ge.Transpose(self, list(permutation(aten.t.default, (self,), self.rank)))


@converter(aten.transpose.int)
def transpose(self, dim0, dim1):
    """Two dims swapped."""
    return ge.Transpose(self, list(permutation(aten.transpose.int, (self, dim0, dim1), self.rank)))


@converter(aten.expand.default)
def expand(self, size, *, implicit=False):
    """Dims of size 1 repeated; -1 keeps a dim."""
    return ge.BroadcastTo(self, size)


@converter(aten.stack.default)
def stack(tensors, dim=0):
    """A new dim."""
    return ge.Pack(tensors, axis=dim_of(dim, tensors[0].rank + 1), N=len(tensors))
