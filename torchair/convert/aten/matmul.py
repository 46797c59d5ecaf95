"""ATen matrix products."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.registry import converter, rename

aten = torch.ops.aten

rename({
    aten.mm.default: ge.MatMul,
    aten.bmm.default: ge.BatchMatMul,
})


@converter(aten.addmm.default)
def addmm(self, mat1, mat2, *, beta=1, alpha=1):
    """beta * self + alpha * (mat1 @ mat2); with beta 0 a NaN in self does not spread."""
    if alpha == 1 and beta == 1 and self.rank == 1:
        return ge.MatMulV2(mat1, mat2, self)
    product = ge.MatMulV2(mat1, mat2)
    product = product if alpha == 1 else ge.Muls(product, value=float(alpha))
    if beta == 0:
        return product
    return ge.Add(product, self if beta == 1 else ge.Muls(self, value=float(beta)))
