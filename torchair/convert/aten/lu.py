"""LU factors with LAPACK's pivots, decomposed into torch calls that convert.

The IR's Lu returns the input row of each row of the factors; LAPACK returns which rows were swapped at each
step.

Each follows from the other without a step per row. Rows swap only with rows below. So a row that left its
place before step i is found by following the permutation until it leads to i or below. The origin of a row is
found by following the steps that touched its place last, backwards. Chains of a known size are followed in
strides that double, others in a loop of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchair.convert.base.registry import register_decomposition

aten = torch.ops.aten


def places_of(size: Any, x: Tensor) -> Tensor:
    """Return 0, 1, 2 ..."""
    return torch.arange(size, dtype=torch.int64, device=x.device)


def repeated(
    step: Callable[..., Tensor], goes_on: Callable[..., Tensor], x: Tensor, *others: Tensor
) -> Tensor:
    """Repeat `step(x, *others)` while `goes_on(x, *others)` is true."""
    (last,) = torch.ops.higher_order.while_loop(
        goes_on, lambda x, *others: (step(x, *others),), (x,), tuple(other * 1 for other in others)
    )
    return last


def swaps_of(rows: Tensor) -> Tensor:
    """Return the row that each step swapped with its own, from the final row of each place.

    It is the first of rows[i], rows[rows[i]] ... that is not above i.
    """
    size = rows.shape[-1]
    places = places_of(size, rows).expand(rows.shape)
    if not isinstance(size, int):
        return repeated(
            lambda x, rows, places: torch.where(x < places, rows.gather(-1, x), x),
            lambda x, rows, places: (x < places).any(),
            rows,
            rows,
            places,
        )
    # For 1, 2, 4 ... hops: where they lead, and the lowest row on the way.
    strides = [(rows, rows)]
    for _ in range((size - 1).bit_length() - 1):
        target, lowest = strides[-1]
        strides.append((target.gather(-1, target), torch.maximum(lowest, lowest.gather(-1, target))))
    before = places
    for target, lowest in reversed(strides):
        before = torch.where(lowest.gather(-1, before) < places, target.gather(-1, before), before)
    return rows.gather(-1, before)


def rows_of(pivots: Tensor, size: Any) -> Tensor:
    """Return the input row of each place, from LAPACK's pivots. Places without a pivot do not swap."""
    batch, count = pivots.shape[:-1], pivots.shape[-1]
    places = places_of(size, pivots)
    if size == 0:
        return places.expand(*batch, size)
    swaps = torch.where(places < count, padded(pivots.long() - 1, size - count), places)
    above = places.unsqueeze(-1) > places
    touched = latest(above & (swaps.unsqueeze(-2) == swaps.unsqueeze(-1)), places)
    earlier = latest(above & (swaps.unsqueeze(-2) == places.unsqueeze(-1)), places)
    origin = torch.where(earlier < 0, places, earlier)
    if isinstance(size, int):
        for _ in range((size - 1).bit_length()):
            origin = origin.gather(-1, origin)
    else:
        origin = repeated(lambda x: x.gather(-1, x), lambda x: (x.gather(-1, x) != x).any(), origin)
    return torch.where(touched < 0, swaps, origin.gather(-1, touched.clamp(min=0)))


def latest(hit: Tensor, places: Tensor) -> Tensor:
    """Return the last marked place along the last dim, or -1."""
    return torch.where(hit, places, -1).amax(-1)


def padded(x: Tensor, *more: Any) -> Tensor:
    """Append zeros to the last dim, the last but one ..."""
    if all(isinstance(count, int) and count == 0 for count in more):
        return x
    return torch.constant_pad_nd(x, [end for count in more for end in (0, count)])


@register_decomposition(aten.linalg_lu_factor_ex.default)
def linalg_lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Return both factors in one matrix, the pivots, and the first step whose candidates were all zero."""
    if not pivot or check_errors:
        return NotImplemented
    m, n = A.shape[-2:]
    count = torch.sym_min(m, n)
    if count == 0:
        batch = A.shape[:-2]
        return A.clone(), A.new_zeros([*batch, 0], dtype=torch.int32), A.new_zeros(batch, dtype=torch.int32)
    permutation, lower, upper = torch.linalg.lu(A)
    packed = padded(lower.tril(-1), n - count) + padded(upper, 0, m - count)
    pivots = swaps_of(permutation.abs().argmax(-2))[..., :count] + 1
    steps = places_of(count, A) + 1
    failed = torch.where(upper.diagonal(0, -2, -1) == 0, steps, count + 1).amin(-1)
    return packed, pivots.int(), torch.where(failed > count, 0, failed).int()


@register_decomposition(aten.lu_unpack.default)
def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return P, L and U; parts that are not requested are empty."""
    m, n = LU_data.shape[-2:]
    count = torch.sym_min(m, n)
    permutation = lower = upper = LU_data.new_empty([0])
    if unpack_pivots:
        rows = rows_of(LU_pivots, m)
        permutation = (rows.unsqueeze(-2) == places_of(m, rows).unsqueeze(-1)).to(LU_data.dtype)
    if unpack_data:
        unit = places_of(m, LU_data).unsqueeze(-1) == places_of(count, LU_data)
        lower = LU_data[..., :count].tril(-1) + unit.to(LU_data.dtype)
        upper = LU_data[..., :count, :].triu()
    return permutation, lower, upper


@register_decomposition(aten.linalg_lu_solve.default)
def linalg_lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """Return X with A X = B, where A = P L U; or with its adjoint, or X A = B, which is A^H X^H = B^H."""
    if not left:
        return linalg_lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    batch = torch.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    x = B.expand(*batch, *B.shape[-2:])
    rows = rows_of(pivots, LU.shape[-1]).unsqueeze(-1).expand(x.shape)
    if adjoint:
        x = torch.linalg.solve_triangular(LU.mH, x, upper=False)
        x = torch.linalg.solve_triangular(LU.mH, x, upper=True, unitriangular=True)
        return torch.zeros_like(x).scatter(-2, rows, x)
    x = torch.linalg.solve_triangular(LU, x.gather(-2, rows), upper=False, unitriangular=True)
    return torch.linalg.solve_triangular(LU, x, upper=True)


# Factors that solves and determinants save for their gradients. Without readers of the factors these calls
# have their own IR ops.


def factors_for_determinant(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors and pivots: those of the transposed matrix if LAPACK finds that in memory."""
    turned = A.is_contiguous() and not A.is_complex()
    packed, pivots, _ = aten.linalg_lu_factor_ex.default(A.mT if turned else A)
    return packed, pivots


def parity(pivots: Tensor) -> Tensor:
    """Return 1 for an even number of swaps, -1 for an odd one."""
    swapped = pivots != places_of(pivots.shape[-1], pivots) + 1
    return 1 - 2 * (swapped.sum(-1) % 2)


@register_decomposition(aten._linalg_det.default)
def linalg_det(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the determinant and the factors."""
    packed, pivots = factors_for_determinant(A)
    return packed.diagonal(0, -2, -1).prod(-1) * parity(pivots), packed, pivots


@register_decomposition(aten._linalg_slogdet.default)
def linalg_slogdet(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sign and logarithm of the magnitude of the determinant, and the factors."""
    packed, pivots = factors_for_determinant(A)
    diagonal = packed.diagonal(0, -2, -1)
    return diagonal.sgn().prod(-1) * parity(pivots), diagonal.abs().log().sum(-1), packed, pivots


@register_decomposition(aten._linalg_solve_ex.default)
def linalg_solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """Return X with A X = B, or X A = B, the factors, and which matrices failed."""
    if check_errors:
        return NotImplemented
    is_vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    packed, pivots, info = aten.linalg_lu_factor_ex.default(A)
    x = aten.linalg_lu_solve.default(packed, pivots, B.unsqueeze(-1) if is_vector else B, left=left)
    return x.squeeze(-1) if is_vector else x, packed, pivots, info
