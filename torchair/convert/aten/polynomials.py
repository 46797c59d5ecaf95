"""Orthogonal polynomials: one loop over the degree, which is data, as a While of the IR.

Each family is its polynomial of degree 1 and the step from degrees j-1 and j to j+1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchair.convert.base.registry import register_decomposition

aten = torch.ops.aten
Tensor = torch.Tensor

First = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(x, j, value at degree j-1, value at degree j) -> value at degree j+1."""


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a·b - c, rounded once as in eager's loop, whose results differ visibly from those
    rounded twice.
    """
    if a.dtype != torch.float32:
        return a * b - c
    return (a.double() * b.double() - c.double()).float()


def chebyshev(x: Tensor, j: Tensor, p: Tensor, q: Tensor) -> Tensor:
    return fused(x + x, q, p)


FAMILIES: dict[str, tuple[First, Step]] = {
    "chebyshev_polynomial_t": (lambda x: x * 1, chebyshev),
    "chebyshev_polynomial_u": (lambda x: x + x, chebyshev),
    "chebyshev_polynomial_v": (lambda x: x + x - 1, chebyshev),
    "chebyshev_polynomial_w": (lambda x: x + x + 1, chebyshev),
    "hermite_polynomial_h": (lambda x: x + x, lambda x, j, p, q: fused(x + x, q, 2 * j * p)),
    "hermite_polynomial_he": (lambda x: x * 1, lambda x, j, p, q: fused(x, q, j * p)),
    "laguerre_polynomial_l": (
        lambda x: 1 - x,
        lambda x, j, p, q: fused(2 * j + (1 - x), q, j * p) / (j + 1),
    ),
    "legendre_polynomial_p": (
        lambda x: x * 1,
        lambda x, j, p, q: fused((2 * j + 1) * x, q, j * p) / (j + 1),
    ),
}
# Above this degree eager returns no Hermite polynomials.
HERMITE_LIMIT = {torch.float32: 128, torch.float64: 512}


def polynomial(family: str, shifted: bool, x: Any, n: Any) -> Tensor:
    """Return the polynomial of degree n (truncated to an integer) at x, element by element; 0 below
    degree 0.
    """
    first, step = FAMILIES[family]
    dtype = torch.result_type(x, n)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    device = x.device if isinstance(x, Tensor) else n.device
    points, degree = torch.broadcast_tensors(
        torch.as_tensor(x, dtype=dtype, device=device), torch.as_tensor(n, device=device).to(torch.int64)
    )
    if points.numel() == 0:
        return torch.empty_like(points)
    points = points * 2 - 1 if shifted else points * 1

    def goes_on(j: Tensor, p: Tensor, q: Tensor, points: Tensor, degree: Tensor) -> Tensor:
        return j < degree.amax()

    def body(j: Tensor, p: Tensor, q: Tensor, points: Tensor, degree: Tensor) -> tuple[Tensor, ...]:
        higher = step(points, j.to(points.dtype), p, q)
        runs = j < degree
        return j + 1, torch.where(runs, q, p), torch.where(runs, higher, q)

    start = (torch.ones((), dtype=torch.int64, device=device), torch.ones_like(points), first(points))
    _, _, value = torch.ops.higher_order.while_loop(goes_on, body, start, (points, degree * 1))
    value = torch.where(degree == 0, torch.ones_like(value), value)
    if family.startswith("hermite"):
        value = torch.where(degree > HERMITE_LIMIT[dtype], torch.full_like(value, torch.nan), value)
    return torch.where(degree < 0, torch.zeros_like(value), value)


for _family in FAMILIES:
    for _shifted in (False, True) if _family.startswith("chebyshev") else (False,):
        _packet = getattr(aten, f"special_{'shifted_' if _shifted else ''}{_family}")
        for _overload in ("default", "x_scalar", "n_scalar"):
            register_decomposition(getattr(_packet, _overload))(
                functools.partial(polynomial, _family, _shifted)
            )
