"""ATen matrix products. torch itself decomposes `mv dot addmv addr` and similar ops."""

from __future__ import annotations

import functools

import torch

from torchair import ge
from torchair.convert.aten.index import product
from torchair.convert.base.operands import INT64, cast, like, pack, promote, size_of, torch_dtype
from torchair.convert.base.registry import converter
from torchair.core import dtypes
from torchair.ge.graph import Tensor

aten = torch.ops.aten


@converter(aten.mm.default, aten.bmm.default)
def matrix_product(self, mat2):
    """Multiply over the last two dims. The ops support no complex numbers: those are products of parts."""
    make = ge.MatMul if self.rank == mat2.rank == 2 else ge.BatchMatMul
    if not torch_dtype(self).is_complex:
        return make(self, mat2)
    kind = dtypes.to_ge(torch_dtype(self).to_real())
    (a, b), (c, d) = ((ge.Real(x, Tout=kind), ge.Imag(x, Tout=kind)) for x in (self, mat2))
    real, imaginary = ge.Sub(make(a, c), make(b, d)), ge.Add(make(a, d), make(b, c))
    return ge.Complex(real, imaginary, Tout=self.dtype)


def scaled(x, factor):
    """Return x * factor; a float tensor is multiplied by the unrounded number, as in eager."""
    if isinstance(factor, Tensor):
        return ge.Mul(x, cast(factor, x.dtype))
    if factor == 1:
        return x
    if torch_dtype(x) in (torch.float32, torch.float16, torch.bfloat16):
        return ge.Muls(x, value=float(factor))
    return ge.Mul(x, like(factor, x))


def plus(product, self, beta):
    """Return product + beta * self; with beta 0 a NaN in self does not spread."""
    return product if not isinstance(beta, Tensor) and beta == 0 else ge.Add(product, scaled(self, beta))


@converter(aten.addmm.default)
def addmm(self, mat1, mat2, *, beta=1, alpha=1):
    """Return beta * self + alpha * (mat1 @ mat2); a vector that is only added becomes the bias of the
    product.
    """
    if (
        self.rank == 1
        and not isinstance(alpha, Tensor)
        and not isinstance(beta, Tensor)
        and alpha == beta == 1
        and not torch_dtype(mat1).is_complex
    ):
        return ge.MatMulV2(mat1, mat2, self)
    return plus(scaled(matrix_product(mat1, mat2), alpha), self, beta)


@converter(aten.baddbmm.default)
def baddbmm(self, batch1, batch2, *, beta=1, alpha=1):
    """Return beta * self + alpha * (batch1 @ batch2), matrix by matrix."""
    return plus(scaled(matrix_product(batch1, batch2), alpha), self, beta)


@converter(aten.addbmm.default)
def addbmm(self, batch1, batch2, *, beta=1, alpha=1):
    """Return beta * self + alpha * the sum of the products of all matrix pairs."""
    product = ge.ReduceSum(matrix_product(batch1, batch2), [0])
    return plus(scaled(product, alpha), self, beta)


@converter(aten.matmul.default)
def matmul(self, other, *, meta_outputs):
    """Multiply over the last two dims; the decomposition handles vectors."""
    if min(self.rank, other.rank) < 2:
        raise NotImplementedError("an operand is a vector")
    self, other = promote(self, other, to=meta_outputs.dtype)
    return matrix_product(self, other)


@converter(aten.linear.default)
def linear(input, weight, bias=None):
    """input @ weight.T + bias over the last dim."""
    if input.rank < 2 or weight.rank != 2:
        raise NotImplementedError("an operand is a vector")
    if torch_dtype(input).is_complex:
        raise NotImplementedError("a complex product is a product of parts")
    if input.rank == 2:
        return ge.MatMulV2(input, weight, bias, transpose_x2=True)
    return ge.BatchMatMulV2(input, weight, bias, adj_x2=True)


@converter(aten.matmul_backward.default)
def matmul_backward(grad, self, other, mask):
    """Return the gradients of a batched product; broadcast batch dims are not summed here."""
    if not self.rank == other.rank == grad.rank >= 2:
        raise NotImplementedError("the operands have different ranks")
    grad_self = ge.BatchMatMul(grad, other, adj_x2=True) if mask[0] else None
    return grad_self, ge.BatchMatMul(self, grad, adj_x1=True) if mask[1] else None


# GroupedMatmul's codes for the dtype of its result, and for the tensors that it splits.
_GROUPED_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 3}
_SPLIT_ROWS, _SPLIT_INNER = 0, 2


@converter(aten._grouped_mm.default, "transformers.grouped_mm_fallback.default")
def grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None, *, meta_outputs):
    """Multiply each group; `offs` are the cumulative ends of the groups."""
    if offs is None and bias is None and self.dtype == meta_outputs.dtype:
        return ge.BatchMatMul(self, mat2)
    ranks = (self.rank, mat2.rank)
    if (
        offs is None
        or bias is not None
        or ranks not in ((2, 3), (2, 2))
        or meta_outputs.torch_dtype not in _GROUPED_DTYPES
    ):
        raise NotImplementedError("GroupedMatmul splits rows or the inner dim of 2-D data, without bias here")
    group_type = _SPLIT_ROWS if mat2.rank == 3 else _SPLIT_INNER
    dtype = _GROUPED_DTYPES[meta_outputs.torch_dtype]
    (result,) = ge.GroupedMatmul(
        [self], [mat2], [], [], [], [], [], cast(offs, INT64),
        group_type=group_type, split_item=3, dtype=dtype, outputs=1,
    )  # fmt: skip
    return result


def along_dim(matrix, x, dim):
    """Multiply every line of `x` along one dim by a matrix."""
    if dim == x.rank - 1 and not torch_dtype(x).is_complex:
        return ge.BatchMatMul(x, matrix, adj_x2=True)
    have = [size_of(x, place) for place in range(x.rank)]
    after = functools.reduce(product, have[dim + 1 :], 1)
    result = matrix_product(matrix, ge.Reshape(x, pack([-1, have[dim], after])))
    return ge.Reshape(result, pack([*have[:dim], size_of(matrix, 0), *have[dim + 1 :]]))


@converter(aten._trilinear.default)
def trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """Return the product of three tensors, each with dims of size 1 inserted, summed over some dims."""
    is_half = dtypes.to_torch(i1.dtype) in (torch.float16, torch.bfloat16)
    inner = ge.DataType.DT_FLOAT if is_half else i1.dtype
    parts = [
        cast(ge.Unsqueeze(x, axes=sorted(dims)) if dims else x, inner)
        for x, dims in zip((i1, i2, i3), (expand1, expand2, expand3), strict=True)
    ]
    whole = ge.Mul(ge.Mul(parts[0], parts[1]), parts[2])
    return cast(ge.ReduceSum(whole, list(sumdim)) if sumdim else whole, i1.dtype)
