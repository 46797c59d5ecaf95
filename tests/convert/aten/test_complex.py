"""Complex numbers against eager: parts and views, lazy conjugates, arithmetic and functions in both
precisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.convert.harness import check

DTYPES = pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
aten = torch.ops.aten


def z(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


ONE: list[Callable[[Tensor], Any]] = [
    torch.view_as_real, torch.real, torch.imag, torch.angle, torch.abs, torch.conj_physical, torch.neg,
    torch.exp, torch.sqrt, torch.sin, torch.cos, torch.tanh, torch.sgn, torch.reciprocal, torch.square,
    torch.log, torch.sum, torch.mean, torch.isfinite, torch.prod, torch.cumsum,
]  # fmt: skip


@DTYPES
@pytest.mark.parametrize("fn", ONE, ids=lambda fn: fn.__name__)
def test_of_one_number(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    call = (lambda x: fn(x, 1)) if fn is torch.cumsum else fn
    check(call, z(2, 3, dtype=dtype), rtol=1e-4, atol=1e-5)


@DTYPES
@pytest.mark.parametrize("fn", [torch.add, torch.sub, torch.mul, torch.div, torch.eq, torch.ne, torch.matmul])
def test_of_two_numbers(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    check(fn, z(3, 3, dtype=dtype), z(3, 3, dtype=dtype), rtol=1e-4, atol=1e-5)
    check(fn, z(3, 3, dtype=dtype), torch.randn(3, 3, dtype=z(1, dtype=dtype).real.dtype).to(dtype))


def test_numbers_of_mixed_kinds() -> None:
    check(lambda x: x * 2 + 1.5j, z(2, 3))
    check(lambda x, y: x * y - y, z(2, 3), torch.randn(3))
    check(lambda x, y: x + y, z(2, 3), z(3, dtype=torch.complex128))
    check(lambda x: torch.where(x.real > 0, x, x.conj()), z(2, 3))
    check(lambda x: x.pow(2), z(2, 3), rtol=1e-4, atol=1e-5)


def test_lazy_views() -> None:
    check(lambda x: x.conj().mul(2).resolve_conj(), z(2, 3))
    check(lambda x: x.conj().imag + 1, z(2, 3))
    check(lambda x: x.conj().T @ x, z(2, 3), rtol=1e-4, atol=1e-5)
    check(lambda x: torch.resolve_neg(x.conj().imag), z(2, 3))
    check(lambda x: x.mH, z(2, 3))


@DTYPES
def test_made_of_parts(dtype: torch.dtype) -> None:
    part = torch.float32 if dtype is torch.complex64 else torch.float64
    x, y = torch.randn(2, 3, dtype=part), torch.randn(2, 3, dtype=part)
    check(torch.complex, x, y)
    check(torch.polar, x.abs(), y)
    check(torch.polar, x.abs(), y, dynamic=True)
    check(torch.view_as_complex, torch.randn(3, 2, dtype=part))
    check(torch.view_as_complex, torch.randn(3, 2, dtype=part), dynamic=True)


@pytest.mark.parametrize(
    "op", [aten._conj_copy.default, aten.view_as_real_copy.default, aten._neg_view_copy.default], ids=str
)
def test_copies_of_views(op: Any) -> None:
    check(lambda x: op(x), z(2, 3))
    check(lambda x: aten.view_as_complex_copy.default(x), torch.randn(3, 2))


def test_shapes_of_complex_tensors() -> None:
    check(lambda x: torch.cat([x, x.conj()], 1).transpose(0, 1).reshape(-1, 2)[1:], z(2, 3))
    check(lambda x: x[:, [0, 2]].flip(0), z(2, 3))
    check(lambda x: torch.stack([x, 2 * x]).sum(0), z(2, 3), dynamic=True)
    check(lambda x: torch.nn.functional.pad(x, (1, 1)), z(2, 3))
