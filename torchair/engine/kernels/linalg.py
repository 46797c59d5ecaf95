"""Matrices over the last two dims.

Only Assert raises: a singular matrix gives infinities, as on a device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import has_side_effect

from torchair.core.kernel_params import Int
from torchair.engine.registry import Value, kernel, torch_kernels
from torchair.ge.host import Host

torch_kernels({"MatrixDeterminant": torch.linalg.det})

# They return nothing: a lowered graph keeps them because they raise. Not every torch marks them so itself.
aten = torch.ops.aten
has_side_effect(aten._linalg_check_errors.default)
has_side_effect(aten._assert_async.msg)


@kernel("Assert")
def assertion(input_condition, input_data: Value, *, summarize):
    """Raise if the condition is false.

    With `info` of factorizations and the code points of a name as data, it is ATen's own check, which raises
    `LinAlgError`.
    """
    name, info = _checked_call(input_data)
    if name:
        aten._linalg_check_errors.default(info, name, is_matrix=info.ndim == 0)
    else:
        aten._assert_async.msg(input_condition.all(), "an Assert op of the graph failed")


def _checked_call(data: Any) -> tuple[str, Any]:
    """Return the name of a linear algebra call and its `info`; the name is empty for other data."""
    if len(data) != 2 or not isinstance(data[1], Host) or data[0].dtype != torch.int32:
        return "", None
    info, letters = data
    # Known without data if there are no matrices.
    info = info.to_tensor() if isinstance(info, Host) else info
    name = "".join(chr(item) for item in letters.items if isinstance(item, int) and 32 < item < 127)
    return (name, info) if name.startswith("linalg.") else ("", None)


@kernel("Cholesky")
def cholesky(x):
    """Return the lower factor; for a matrix without one, the intermediate result."""
    return torch.linalg.cholesky_ex(x).L


@kernel("MatrixInverse")
def matrix_inverse(x, *, adjoint):
    """Return the inverse (of the adjoint)."""
    return torch.linalg.inv_ex(x.mH if adjoint else x).inverse


@kernel("MatrixSolve")
def matrix_solve(matrix, rhs, *, adjoint):
    """Return X with matrix X = rhs."""
    return torch.linalg.solve_ex(matrix.mH if adjoint else matrix, rhs).result


@kernel("MatrixTriangularSolve")
def matrix_triangular_solve(matrix, rhs, *, lower, adjoint):
    """Return X with matrix X = rhs; only one triangle of the matrix is read."""
    if adjoint:
        return torch.linalg.solve_triangular(matrix.mH, rhs, upper=lower)
    return torch.linalg.solve_triangular(matrix, rhs, upper=not lower)


@kernel("LogMatrixDeterminant")
def log_matrix_determinant(x):
    """Return sign and logarithm of the magnitude, both in the dtype of the matrix."""
    sign, logarithm = torch.linalg.slogdet(x)
    return sign, logarithm.to(x.dtype)


@kernel("Lu")
def lu(input, *, output_idx_type):
    """Return both factors in one matrix, and the input row of each of its rows."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(input)
    permutation, _, _ = torch.lu_unpack(factors, pivots, unpack_data=False)
    rows = torch.argmax(permutation.abs(), -2)
    return factors, rows.to(torch.int64 if output_idx_type == 9 else torch.int32)


@kernel("Qr")
def qr(x, *, full_matrices):
    """Return Q and R."""
    return tuple(torch.linalg.qr(x, "complete" if full_matrices else "reduced"))


@kernel("Svd")
def svd(x, *, compute_uv, full_matrices):
    """Return singular values in the dtype of the matrix, U and V; without vectors the latter are empty."""
    if not compute_uv:
        sigma = torch.linalg.svdvals(x)
        return sigma.to(x.dtype), x.new_empty(0), x.new_empty(0)
    u, sigma, vh = torch.linalg.svd(x, full_matrices=full_matrices)
    return sigma.to(x.dtype), u, vh.mH


@kernel("SelfAdjointEig")
def self_adjoint_eig(x, *, compute_v):
    """Return eigenvalues in the dtype of the matrix, ascending, and eigenvectors, from the lower triangle."""
    if not compute_v:
        return torch.linalg.eigvalsh(x).to(x.dtype), x.new_empty(0)
    values, vectors = torch.linalg.eigh(x)
    return values.to(x.dtype), vectors


@kernel("MatrixSetDiag")
def matrix_set_diag(x, diagonal):
    """Return x with another main diagonal."""
    return torch.diagonal_scatter(x, diagonal, 0, -2, -1)


@kernel("OneHot")
def one_hot(x, depth: Int, on_value, off_value, *, axis):
    """Return `on_value` at index x along a new dim, `off_value` elsewhere."""
    places = torch.arange(depth, device=x.device, dtype=x.dtype)
    dim = axis if axis >= 0 else axis + x.ndim + 1
    hot = x.unsqueeze(dim) == places.view([-1 if place == dim else 1 for place in range(x.ndim + 1)])
    return torch.where(hot, on_value, off_value)


@kernel("Cross")
def cross(x1, x2, *, dim):
    """Return the vector product along `dim`; the default is the first dim of size 3."""
    first = next((place for place, size in enumerate(x1.shape) if size == 3), -1)
    return torch.linalg.cross(x1, x2, dim=first if dim == -65530 else dim)
