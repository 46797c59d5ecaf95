"""Special functions: formulas of IR arithmetic against ATen's own kernels, poles and infinities included."""

from __future__ import annotations

import pytest
import torch

from tests.convert.harness import check
from tests.support.slow import slow

special = torch.special
INF, NAN = float("inf"), float("nan")
# Every branch, its ends, the poles, what is not a number.
POINTS = [
    *(0.0, -0.0, 1e-30, 1e-6, -1e-6, 0.25, 0.5, 1.0, 1.5, 2.0, 2.05, 2.1, 3.0, 5.0, 5.1, 7.9, 8.1, 8.4),
    *(9.99, 10.0, 10.1, 20.0, 26.0, 49.0, 51.0, 80.0, 104.0, 1e4, 1e10, 3e38, INF, -INF, NAN),
    *(-0.25, -0.5, -1.0, -1.5, -2.0, -2.05, -2.1, -5.5, -6.2, -9.5, -20.3, -26.8, -1e4),
]  # fmt: skip
FUNCTIONS = {
    "i0": torch.i0,
    "i1": special.i1,
    "modified_bessel_i0": special.modified_bessel_i0,
    "modified_bessel_i1": special.modified_bessel_i1,
    "modified_bessel_k0": special.modified_bessel_k0,
    "modified_bessel_k1": special.modified_bessel_k1,
    "scaled_modified_bessel_k0": special.scaled_modified_bessel_k0,
    "scaled_modified_bessel_k1": special.scaled_modified_bessel_k1,
    "bessel_j0": special.bessel_j0,
    "bessel_j1": special.bessel_j1,
    "bessel_y0": special.bessel_y0,
    "bessel_y1": special.bessel_y1,
    "spherical_bessel_j0": special.spherical_bessel_j0,
    "airy_ai": special.airy_ai,
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "trigamma": lambda x: torch.polygamma(1, x),
    "polygamma_3": lambda x: torch.polygamma(3, x),
    "erfcx": special.erfcx,
    "log_ndtr": special.log_ndtr,
    "zeta": lambda x: special.zeta(x, 2.5),
    "frexp": torch.frexp,
}


@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.float64)], ids=["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_function(name: str, dtype: torch.dtype) -> None:
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-9, "atol": 1e-11}
    check(FUNCTIONS[name], torch.tensor(POINTS, dtype=dtype), **tolerance)


@pytest.mark.parametrize("name", ["lgamma", "erfcx", "frexp"])
def test_special_function_with_symbolic_sizes(name: str) -> None:
    check(FUNCTIONS[name], torch.rand(3, 4) * 9, dynamic=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["i0", "lgamma", "digamma"])
def test_half_precision_computes_in_float(name: str) -> None:
    check(FUNCTIONS[name], torch.rand(50, dtype=torch.bfloat16) * 9)


def test_frexp_of_subnormal_numbers() -> None:
    check(torch.frexp, torch.tensor([1e-45, -3e-42, 1.1754944e-38]))
