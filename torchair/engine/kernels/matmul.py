"""Matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.engine.registry import kernel


@kernel("MatMul")
def mat_mul(x1, x2, bias, *, transpose_x1, transpose_x2):
    """Multiply 2-D matrices; a flag transposes an operand first. `bias` is added to every row."""
    a = x1.t() if transpose_x1 else x1
    b = x2.t() if transpose_x2 else x2
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


@kernel("MatMulV2")
def mat_mul_v2(x1, x2, bias, offset_w, *, transpose_x1, transpose_x2):
    """Multiply as MatMul; `offset_w` is only for quantized weights."""
    assert offset_w is None, "offset_w is only for quantized weights"
    return mat_mul(x1, x2, bias, transpose_x1=transpose_x1, transpose_x2=transpose_x2)


@kernel("BatchMatMul")
def batch_mat_mul(x1, x2, *, adj_x1, adj_x2):
    """Multiply over the last two dims with broadcast batch dims."""
    a = x1.mT if adj_x1 else x1
    b = x2.mT if adj_x2 else x2
    return torch.matmul(a, b)


@kernel("BatchMatMulV2")
def batch_mat_mul_v2(x1, x2, bias, offset_w, *, adj_x1, adj_x2):
    """Multiply as BatchMatMul; `bias` is added to every row."""
    assert offset_w is None, "offset_w is only for quantized weights"
    if adj_x2 and not adj_x1 and x2.ndim == 2:
        return F.linear(x1, x2, bias)
    product = batch_mat_mul(x1, x2, adj_x1=adj_x1, adj_x2=adj_x2)
    return product if bias is None else product + bias
