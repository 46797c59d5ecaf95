"""Orthogonal polynomials: a loop over the degree in the IR, equal to eager at every degree and point."""

from __future__ import annotations

import pytest
import torch

from tests.convert.harness import check
from tests.support.slow import STATIC_FIRST
from torchair.convert.aten.polynomials import FAMILIES

NAMES = [*FAMILIES, *(f"shifted_{name}" for name in FAMILIES if name.startswith("chebyshev"))]


@STATIC_FIRST
@pytest.mark.parametrize("name", NAMES)
def test_degrees_as_data(name: str, dynamic: bool) -> None:
    x = torch.linspace(-1.5, 1.5, 9)
    degree = torch.tensor([0.0, 1.0, 2.7, 3.0, 5.0, 9.0, 12.0, -1.0, 4.0])
    report = check(getattr(torch.special, name), x, degree, dynamic=dynamic, rtol=1e-4, atol=1e-4)
    assert not report.fallbacks


@pytest.mark.parametrize("name", ["hermite_polynomial_h", "chebyshev_polynomial_t"])
def test_scalars_empty_and_beyond_the_limit(name: str) -> None:
    op = getattr(torch.special, name)
    check(lambda x: op(x, 4), torch.tensor([0.5, 2.0]))
    check(lambda n: op(0.3, n), torch.tensor([0, 3, 7]))
    check(op, torch.empty(0), torch.empty(0))
    check(op, torch.tensor([0.5]), torch.tensor([200.0]), rtol=1e-3, atol=1e-3)
