"""Matrices: factors, solutions, inverses, determinants. The IR's ops take the last two dims and any batch.

ATen reports failures in `info`, the IR does not: `info` is computed from the result (1 where a matrix
failed), so `linalg.inv` of a singular matrix still raises. Products of LAPACK's reflectors are matrix
products; `qr.py` computes reflectors, `lu.py` LAPACK's pivots. The calls below have no IR ops: they become
opaque ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchair import ge
from torchair.convert.aten.matmul import matrix_product
from torchair.convert.base.operands import (
    INT32,
    INT64,
    cast,
    like,
    pack,
    same_size,
    shape_of,
    size_of,
    sizes,
    torch_dtype,
)
from torchair.convert.base.registry import converter, opaque
from torchair.core import dtypes
from torchair.ge.graph import Tensor
from torchair.ge.types import TensorSpec

aten = torch.ops.aten


opaque(
    {
        aten.linalg_ldl_factor_ex.default: "the IR has no LDL factors",
        aten.linalg_ldl_solve.default: "the IR has no LDL factors",
        aten.linalg_eig.default: "the IR has eigenvalues of symmetric matrices only",
        aten._linalg_eigvals.default: "the IR has eigenvalues of symmetric matrices only",
        aten.linalg_lstsq.default: "torch cannot trace it: the size of its residuals depends on data",
        aten._linalg_check_errors.default: "an Assert would be kept only by its token, and it has none here",
        aten.linalg_matrix_exp.default: "the number of squarings depends on data",
    }
)

# Dtypes of results: for complex matrices, singular values, eigenvalues and magnitudes are real.
_REAL_OF = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def transposed(x: Tensor) -> Tensor:
    """Swap the last two dims."""
    order = list(range(x.rank))
    return ge.Transpose(x, [*order[:-2], order[-1], order[-2]])


def adjoint(x: Tensor) -> Tensor:
    """Transpose and conjugate."""
    return ge.Conj(transposed(x)) if torch_dtype(x).is_complex else transposed(x)


def real(x: Tensor) -> Tensor:
    """Return the real part; a real tensor is returned unchanged."""
    dtype = torch_dtype(x)
    return ge.Real(x, Tout=dtypes.to_ge(_REAL_OF[dtype])) if dtype.is_complex else x


def with_common_batch(*matrices: Tensor) -> list[Tensor]:
    """Broadcast the batch dims of the matrices."""
    batches = [sizes(matrix)[:-2] for matrix in matrices]
    if all(len(batch) == len(batches[0]) and all(map(same_size, batch, batches[0])) for batch in batches):
        return list(matrices)
    rank = max(map(len, batches))
    common: list[Any] = []
    for place in range(-rank, 0):
        wide = [m for m, batch in zip(matrices, batches, strict=True) if len(batch) >= -place]
        chosen = next((m for m in wide if not same_size(sizes(m)[place - 2], 1)), wide[0])
        common.append(size_of(chosen, place - 2))
    return [
        ge.BroadcastTo(matrix, pack([*common, size_of(matrix, -2), size_of(matrix, -1)]))
        for matrix in matrices
    ]


def nothing(spec: TensorSpec) -> Tensor:
    """Return an empty tensor for a result that was not requested."""
    assert spec.torch_dtype is not None, "the op returns a tensor here"
    return ge.Const(torch.empty(spec.size or [0], dtype=spec.torch_dtype), readable=False)


def failures(ok: Tensor) -> Tensor:
    """Return `info`: 1 for each matrix in which `ok`, given by rows or elements, is false anywhere."""
    axes = list(range(ok.rank - 2, ok.rank))
    return cast(ge.ReduceAny(ge.LogicalNot(ok), axes), INT32)


def finite(x: Tensor) -> Tensor:
    """Return whether every part of a number is finite."""
    if not torch_dtype(x).is_complex:
        return ge.IsFinite(x)
    part = dtypes.to_ge(_REAL_OF[torch_dtype(x)])
    return ge.LogicalAnd(ge.IsFinite(ge.Real(x, Tout=part)), ge.IsFinite(ge.Imag(x, Tout=part)))


# Cholesky


def positive_diagonal(factor: Tensor) -> Tensor:
    """Return whether the factorization succeeded, one row per matrix; a NaN on the diagonal is a failure."""
    diagonal = real(ge.MatrixDiagPart(factor))
    return ge.Unsqueeze(ge.Greater(diagonal, like(0, diagonal)), axes=[-2])


@converter(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(self, *, upper=False, check_errors=False, used):
    """Return L with L L^H = self, or its adjoint; and which matrices were not positive definite."""
    factor = ge.Cholesky(adjoint(self) if upper else self)
    info = failures(positive_diagonal(factor)) if used[1] else None
    return (adjoint(factor) if upper else factor), info


@converter(aten.cholesky.default)
def cholesky(self, upper=False):
    """Return L with L L^H = self; NaN where a matrix is not positive definite, for which eager raises."""
    factor = ge.Cholesky(adjoint(self) if upper else self)
    good = ge.ReduceAll(positive_diagonal(factor), [-2, -1], keep_dims=True)
    factor = ge.SelectV2(good, factor, like(float("nan"), factor))
    return adjoint(factor) if upper else factor


@converter(aten.cholesky_solve.default, aten._cholesky_solve_helper.default)
def cholesky_solve(self, input2, upper=False):
    """Return X with A X = self, where input2 is a Cholesky factor of A."""
    rhs, factor = with_common_batch(self, input2)
    y = ge.MatrixTriangularSolve(factor, rhs, lower=not upper, adjoint=upper)
    return ge.MatrixTriangularSolve(factor, y, lower=not upper, adjoint=not upper)


@converter(aten.cholesky_inverse.default)
def cholesky_inverse(self, upper=False):
    """Return the inverse of A, where self is a Cholesky factor of A."""
    lower = adjoint(self) if upper else self
    inverse = ge.MatrixTriangularSolve(lower, identity_like(lower), lower=True)
    return matrix_product(adjoint(inverse), inverse)


def identity_like(x: Tensor) -> Tensor:
    """Return identity matrices in the shape of `x`."""
    ones = like(1, x)
    row = ge.MatrixDiagPart(x)
    return ge.MatrixSetDiag(ge.ZerosLike(x), ge.BroadcastTo(ones, shape_of(row)))


def unit_lower(packed: Tensor) -> Tensor:
    """Return the part below the diagonal, with ones on the diagonal."""
    below = ge.Tril(packed, diagonal=-1)
    return ge.MatrixSetDiag(below, ge.OnesLike(ge.MatrixDiagPart(packed)))


# Triangles


def triangular(a: Tensor, b: Tensor, *, upper: bool, unit: bool) -> Tensor:
    """Return X with A X = B, using one triangle of A; with `unit` its diagonal counts as ones."""
    a, b = with_common_batch(a, b)
    if unit:
        a = ge.MatrixSetDiag(a, ge.OnesLike(ge.MatrixDiagPart(a)))
    return ge.MatrixTriangularSolve(a, b, lower=not upper)


@converter(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(self, B, *, upper, left=True, unitriangular=False):
    """Return X with self X = B, or X self = B."""
    if left:
        return triangular(self, B, upper=upper, unit=unitriangular)
    return transposed(triangular(transposed(self), transposed(B), upper=not upper, unit=unitriangular))


@converter(aten.triangular_solve.default)
def triangular_solve(self, A, upper=True, transpose=False, unitriangular=False):
    """Return X with A X = self, and A."""
    matrix = transposed(A) if transpose else A
    solution = triangular(matrix, self, upper=upper != transpose, unit=unitriangular)
    return solution, ge.TensorMove(with_common_batch(A, self)[0])


# Solutions and inverses


@converter(aten.linalg_inv_ex.default)
def linalg_inv_ex(A, *, check_errors=False, used):
    """Return the inverse, and which matrices have none."""
    inverse = ge.MatrixInverse(A)
    return inverse, failures(finite(inverse)) if used[1] else None


def _reads_factors(used: Sequence[bool], places: Sequence[int]) -> None:
    if any(used[place] for place in places):
        raise NotImplementedError("its factors are read, which are internal to the IR op")


@converter(aten._linalg_solve_ex.default)
def linalg_solve_ex(A, B, *, left=True, check_errors=False, used, meta_outputs):
    """Return X with A X = B, or X A = B; B may be a batch of vectors."""
    _reads_factors(used, (1, 2))
    is_vector = B.rank == 1 or (B.rank == A.rank - 1 and all(map(same_size, sizes(B), sizes(A)[:-1])))
    rhs = ge.Unsqueeze(B, axes=[-1]) if is_vector else B
    if left:
        x = ge.MatrixSolve(*with_common_batch(A, rhs))
    else:
        x = transposed(ge.MatrixSolve(*with_common_batch(transposed(A), transposed(rhs))))
    info = failures(finite(x)) if used[3] else None
    if info is not None and info.rank != meta_outputs[3].rank:
        raise NotImplementedError("info has the batch of A only, and B has another batch")
    return (ge.Squeeze(x, axis=[x.rank - 1]) if is_vector else x), None, None, info


@converter(aten._linalg_det.default)
def linalg_det(A, *, used):
    """Return the determinant; the LU factors must not be read."""
    _reads_factors(used, (1, 2))
    return ge.MatrixDeterminant(A), None, None


@converter(aten._linalg_slogdet.default)
def linalg_slogdet(A, *, used):
    """Return sign and logarithm of the magnitude of the determinant."""
    _reads_factors(used, (2, 3))
    sign, logarithm = ge.LogMatrixDeterminant(A)
    return sign, real(logarithm), None, None


@converter(aten.linalg_lu.default)
def linalg_lu(A, *, pivot=True):
    """Return P, L, U with A = P L U; the IR's permutation holds the target of each row.

    The IR's Lu needs square matrices. Zeros to the right of or below a matrix change none of its pivots: the
    first of equal candidates wins.
    """
    if not pivot:
        raise NotImplementedError("the IR's Lu always pivots")
    m, n = (size_of(A, dim) for dim in (-2, -1))
    if same_size(sizes(A)[-2], sizes(A)[-1]):
        packed, rows = ge.Lu(A, output_idx_type=INT64)
        lower, upper = packed, packed
    else:
        packed, rows = ge.Lu(squared(A, m, n), output_idx_type=INT64)
        known = isinstance(m, int) and isinstance(n, int)
        count = min(m, n) if known else ge.Minimum(cast(m, INT64), cast(n, INT64))
        rows, lower, upper = corner(rows, m), corner(packed, m, count), corner(packed, count, n)
    chosen = ge.OneHot(rows, cast(m, INT64), like(1, A), like(0, A), axis=-1)
    return transposed(chosen), unit_lower(lower), ge.Triu(upper)


def squared(A: Tensor, m: Any, n: Any) -> Tensor:
    """Pad a matrix with zeros on the right or below to a square."""
    if isinstance(m, int) and isinstance(n, int):
        below, beside = max(n - m, 0), max(m - n, 0)
    else:
        side = ge.Maximum(cast(m, INT64), cast(n, INT64))
        below, beside = (ge.Sub(side, cast(size, INT64)) for size in (m, n))
    paddings = [*[0] * (2 * A.rank - 4), 0, below, 0, beside]
    return ge.PadV3(A, pack(paddings), like(0, A), mode="constant")


def corner(x: Tensor, *counts: Any) -> Tensor:
    """Return the first elements along the last dims."""
    axes = list(range(x.rank - len(counts), x.rank))
    return ge.StridedSliceV2(x, [0] * len(counts), pack(counts), axes, [1] * len(counts))


# Orthogonal factors


@converter(aten.linalg_qr.default)
def linalg_qr(A, mode="reduced", *, meta_outputs):
    """Return Q and R; with mode "r" there is no Q."""
    q, r = ge.Qr(A, full_matrices=mode == "complete")
    return (nothing(meta_outputs[0]) if mode == "r" else q), r


def reflectors(packed: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Return V and T with (1 - tau_1 v_1 v_1^H) (1 - tau_2 v_2 v_2^H) ... = 1 - V T V^H.

    The columns v_i are below the diagonal of `packed`, with ones on it. T follows from how much the columns
    overlap: with D = diag(tau) and S the part of V^H V above the diagonal, T = (1 + D S)^-1 D.
    """
    count = size_of(tau, -1)
    if not same_size(sizes(packed)[-1], sizes(tau)[-1]):
        packed = ge.StridedSliceV2(packed, [0], pack([count]), [packed.rank - 1], [1])
    v = unit_lower(packed)
    overlap = ge.Triu(matrix_product(adjoint(v), v), diagonal=1)
    row = ge.Unsqueeze(tau, axes=[-1])
    scaled = ge.Mul(row, overlap)
    weights = ge.MatrixSetDiag(ge.ZerosLike(scaled), tau)
    return v, triangular(scaled, weights, upper=True, unit=True)


@converter(aten.linalg_householder_product.default)
def linalg_householder_product(input, tau):
    """Return the product of reflectors, with as many columns as the input."""
    unit = identity_like(input)
    if same_size(sizes(tau)[-1], 0):
        return unit
    v, t = reflectors(input, tau)
    return ge.Sub(unit, matrix_product(matrix_product(v, t), matrix_product(adjoint(v), unit)))


@converter(aten.ormqr.default)
def ormqr(self, input2, input3, left=True, transpose=False):
    """Return Q C, C Q, or with the adjoint of Q, where Q is a product of reflectors."""
    if same_size(sizes(input2)[-1], 0):
        return ge.TensorMove(input3)
    v, t = reflectors(self, input2)
    # C Q is the adjoint of Q^H C^H.
    c = input3 if left else adjoint(input3)
    middle = adjoint(t) if transpose == left else t
    result = ge.Sub(c, matrix_product(matrix_product(v, middle), matrix_product(adjoint(v), c)))
    return result if left else adjoint(result)


@converter(aten._linalg_eigh.default)
def linalg_eigh(A, UPLO="L", compute_v=True, *, used, meta_outputs):
    """Return eigenvalues and eigenvectors of a Hermitian matrix, of which the IR reads the lower triangle."""
    wanted = compute_v and used[1]
    values, vectors = ge.SelfAdjointEig(adjoint(A) if UPLO.upper() == "U" else A, compute_v=wanted)
    if wanted:
        return real(values), vectors
    return real(values), None if compute_v else nothing(meta_outputs[1])


def decompose(A: Tensor, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, S, V with A = U S V^H; S is real."""
    sigma, u, v = ge.Svd(A, compute_uv=True, full_matrices=full_matrices)
    return u, real(sigma), v


@converter(aten._linalg_svd.default)
def linalg_svd(A, full_matrices=False, compute_uv=True, *, driver=None, meta_outputs):
    """Return U, S and V^H; the IR returns V."""
    if driver is not None:
        raise NotImplementedError("the IR does not choose between drivers")
    if not compute_uv:
        sigma, _, _ = ge.Svd(A, compute_uv=False, full_matrices=False)
        return nothing(meta_outputs[0]), real(sigma), nothing(meta_outputs[2])
    u, sigma, v = decompose(A, full_matrices)
    return u, sigma, adjoint(v)


@converter(aten.linalg_pinv.atol_rtol_tensor)
def linalg_pinv(self, *, atol=None, rtol=None, hermitian=False):
    """Return V S^-1 U^H, for the singular values above the tolerance; an empty matrix has none."""
    if any(same_size(size, 0) for size in sizes(self)[-2:]):
        return transposed(self)
    if hermitian:
        values, v = ge.SelfAdjointEig(self, compute_v=True)
        sigma, u = real(values), v
    else:
        u, sigma, v = decompose(self)
    size = ge.Abs(sigma) if hermitian else sigma
    largest = ge.ReduceMax(size, [-1], keep_dims=True)
    inverse = ge.SelectV2(
        ge.Greater(size, tolerance(self, largest, atol, rtol)), ge.Reciprocal(sigma), like(0, sigma)
    )
    scaled = ge.Mul(v, cast(ge.Unsqueeze(inverse, axes=[-2]), v.dtype))
    return matrix_product(scaled, adjoint(u))


def tolerance(x: Tensor, largest: Tensor, atol: Tensor | None, rtol: Tensor | None) -> Tensor:
    """Return max(atol, rtol * the largest singular value); with neither given, the size of rounding
    errors.
    """
    if rtol is None:
        rows, columns = (cast(size_of(x, dim), largest.dtype) for dim in (-2, -1))
        rounding = ge.Mul(ge.Maximum(rows, columns), like(torch.finfo(torch_dtype(x)).eps, largest))
        relative = ge.Mul(largest, rounding)
        if atol is not None:
            unset = ge.Greater(column(atol, largest), like(0, largest))
            relative = ge.SelectV2(unset, ge.ZerosLike(largest), relative)
    else:
        relative = ge.Mul(largest, column(rtol, largest))
    return relative if atol is None else ge.Maximum(relative, column(atol, largest))


def column(number: Tensor, beside: Tensor) -> Tensor:
    """Return a tolerance per matrix, shaped to broadcast with rows of singular values."""
    same = cast(number, beside.dtype)
    return ge.Unsqueeze(same, axes=[-1]) if same.rank else same


# Small products

_CROSS_DTYPES = (torch.float16, torch.float32, torch.int32, torch.int8, torch.uint8, torch.int16)


@converter(aten.linalg_cross.default)
def linalg_cross(self, other, *, dim=-1, meta_outputs):
    """Return the vector product along a dim of size 3."""
    dtype = meta_outputs.torch_dtype
    if dtype not in _CROSS_DTYPES:
        raise NotImplementedError(f"the IR's Cross does not support {dtype}")
    if not all(map(same_size, sizes(self), sizes(other))) or self.rank != other.rank:
        raise NotImplementedError("the operands broadcast")
    place = dim + self.rank if dim < 0 else dim
    return ge.Cross(cast(self, dtype), cast(other, dtype), dim=place)


@converter("aten.linalg__powsum.default")
def linalg_powsum(self, ord=2, dim=None, keepdim=False, *, dtype=None, meta_outputs):
    """Return the sum of |x|^ord."""
    axes = list(range(self.rank)) if not dim else list(dim)
    if torch_dtype(self).is_complex:
        raise NotImplementedError("the decomposition handles complex numbers")
    x = ge.Abs(cast(self, meta_outputs.dtype))
    return ge.ReduceSum(ge.Pow(x, like(ord, x)), axes, keep_dims=keepdim)
