"""Elementwise arithmetic: values, promotion, unrounded numbers, symbols as operands."""

from __future__ import annotations

import pytest
import torch

from tests.convert.harness import check, converted

f32, f16, bf16, f64, i64, i32, u8, boolean = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8,
    torch.bool,
)  # fmt: skip


def make(dtype, *shape, low=-4, high=4):
    """Reproducible values of any dtype."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    if dtype is boolean:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)
    if dtype.is_complex:
        return torch.complex(make(f32, *shape), make(f32, *shape[::-1]).reshape(shape)).to(dtype)
    return torch.randint(max(low, 0) if dtype is u8 else low, high, shape, generator=generator).to(dtype)


UNARY = (
    torch.abs, torch.neg, torch.sign, torch.sgn, torch.ceil, torch.floor, torch.round, torch.trunc,
    torch.square,
)  # fmt: skip
UNARY_FLOAT = (
    torch.acos, torch.acosh, torch.asin, torch.asinh, torch.atan, torch.atanh, torch.cos, torch.cosh,
    torch.sin, torch.sinh, torch.tan, torch.tanh, torch.erf, torch.erfc, torch.erfinv, torch.exp,
    torch.exp2, torch.expm1, torch.log, torch.log2, torch.log10, torch.log1p, torch.reciprocal,
    torch.rsqrt, torch.sqrt, torch.special.i0e, torch.special.ndtri, torch.sigmoid,
)  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "dynamic"), [(f32, False), (f32, True), (bf16, False), (i64, False)], ids=str
)
@pytest.mark.parametrize("fn", UNARY, ids=lambda fn: fn.__name__)
def test_unary_op_equals_eager(fn, dtype, dynamic):
    check(fn, make(dtype, 3, 5), dynamic=dynamic)


@pytest.mark.parametrize("dtype", [f32, f16, i64])
@pytest.mark.parametrize("fn", UNARY_FLOAT, ids=lambda fn: fn.__name__)
def test_unary_float_op_equals_eager(fn, dtype):
    if dtype is f16 and fn is torch.special.ndtri:
        pytest.skip("ATen has no half ndtri")
    check(fn, make(dtype, 3, 5))


def test_rounding_keeps_halves_even_and_integers():
    check(torch.round, torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]))
    check(torch.ceil, make(i32, 4))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "fn",
    [
        torch.abs,
        torch.angle,
        torch.exp,
        torch.conj_physical,
        torch.sgn,
        torch.real,
        torch.imag,
        lambda x: x * 2j + x,
    ],
)
def test_complex_pointwise_op_equals_eager(fn, dtype):
    check(fn, make(dtype, 3, 4))


BINARY = (
    torch.add, torch.sub, torch.mul, torch.div, torch.floor_divide, torch.remainder, torch.fmod,
    torch.maximum, torch.minimum, torch.atan2, torch.hypot, torch.fmax, torch.fmin, torch.copysign,
    torch.xlogy,
)  # fmt: skip


@pytest.mark.parametrize(
    ("dtypes", "dynamic"),
    [((f32, f32), True), ((f32, i64), False), ((i32, i64), True), ((bf16, f32), False), ((f16, f16), False)],
    ids=str,
)
@pytest.mark.parametrize("fn", BINARY, ids=lambda fn: fn.__name__)
def test_binary_op_equals_eager(fn, dtypes, dynamic):
    if fn is torch.hypot and not any(dtype.is_floating_point for dtype in dtypes):
        pytest.skip("ATen has no hypot of integers")
    a, b = make(dtypes[0], 3, 1, 5), make(dtypes[1], 4, 5)
    b = torch.where(b == 0, torch.ones_like(b), b)
    check(fn, a, b, dynamic=dynamic)


@pytest.mark.parametrize("dtypes", [(i64, i64), (i32, i64), (i32, i32)], ids=str)
@pytest.mark.parametrize("fn", [torch.gcd, torch.lcm], ids=lambda fn: fn.__name__)
def test_integer_divisors(fn, dtypes):
    a, b = make(dtypes[0], 3, 1, 5), make(dtypes[1], 4, 5)
    check(fn, a, b, dynamic=True)


@pytest.mark.parametrize("fn", [torch.add, torch.mul, torch.maximum, torch.minimum, torch.fmax])
def test_binary_on_bools(fn):
    check(fn, make(boolean, 3, 4), make(boolean, 4))


@pytest.mark.parametrize("number", [0.1, -1.5])
@pytest.mark.parametrize("dtype", [f32, f16, bf16, i64])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x + n, lambda x, n: x - n, lambda x, n: n - x, lambda x, n: x * n, lambda x, n: x / n,
        lambda x, n: torch.add(x, x, alpha=n), lambda x, n: torch.sub(x, x, alpha=n),
        lambda x, n: torch.rsub(x, n),
        lambda x, n: x // n, lambda x, n: x % n, lambda x, n: torch.fmod(x, n), lambda x, n: n ** (x / 4),
    ],
)  # fmt: skip
def test_numbers_are_rounded_as_aten_does(fn, dtype, number):
    number = number if dtype.is_floating_point else 3
    check(lambda x: fn(x, number), make(dtype, 4, 5), rtol=0 if dtype in (f16, bf16) else 1e-6, atol=1e-6)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.5, 0.3])
@pytest.mark.parametrize("dtype", [f32, f16, i64])
def test_pow_with_a_number(exponent, dtype):
    if dtype is i64 and isinstance(exponent, int) and exponent < 0:
        pytest.skip("ATen refuses negative powers of integers")
    check(lambda x: x**exponent, make(dtype, 4, 5))


def test_pow_of_tensors():
    check(torch.pow, make(f32, 4, 5, low=0), make(f32, 4, 5))
    check(lambda x: 2**x, make(i64, 4, low=0))


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", [f32, i64])
def test_rounded_division(mode, dtype):
    b = make(dtype, 4, 5, low=1)
    check(lambda a, b: torch.div(a, b, rounding_mode=mode), make(dtype, 4, 5, low=-9, high=9), b)
    check(lambda a: torch.div(a, 3, rounding_mode=mode), make(dtype, 4, 5, low=-9, high=9))


def test_truncating_division_of_large_integers_is_exact():
    check(lambda a: torch.div(a, 3, rounding_mode="trunc"), torch.tensor([2**62 + 1, -(2**62) - 2]))


@pytest.mark.parametrize("dtype", [f32, f16])
def test_addcmul_addcdiv_lerp(dtype):
    a, b, c = make(dtype, 3, 4), make(dtype, 3, 4) + 5, make(dtype, 4) + 6
    check(lambda a, b, c: torch.addcmul(a, b, c, value=0.1), a, b, c)
    check(lambda a, b, c: torch.addcdiv(a, b, c, value=0.1), a, b, c)
    check(lambda a, b: torch.lerp(a, b, 0.3), a, b)
    check(torch.lerp, a, b, make(dtype, 3, 4, low=0, high=1))
    check(lambda a, b, c: torch.addcmul(a, b, c), make(i64, 4), make(i64, 4), make(i64, 4))


@pytest.mark.parametrize("bounds", [(-1, 1), (None, 0.5), (-0.5, None), (2, -2)])
@pytest.mark.parametrize("dtype", [f32, bf16, i64])
def test_clamp_equals_eager(bounds, dtype):
    check(lambda x: torch.clamp(x, *bounds), make(dtype, 3, 5))


def test_clamp_with_tensors_and_nan():
    x = torch.tensor([float("nan"), -5.0, 0.0, 5.0, float("inf")])
    check(lambda x: torch.clamp(x, -1, 1), x)
    check(lambda x, low: torch.clamp(x, min=low), x, torch.full((5,), -1.0))
    check(lambda x, low, high: torch.clamp(x, low, high), x, torch.full((5,), -1.0), torch.full((5,), 1.0))
    check(lambda x: torch.clamp_min(x, 0), x)
    check(lambda x: torch.clamp_max(x, 0), x)


def test_nan_to_num():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    check(torch.nan_to_num, x)
    check(lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0), x.half())
    check(torch.nan_to_num, x.double())
    check(torch.nan_to_num, make(i64, 3))


@pytest.mark.parametrize("dtype", [f32, f16, i64])
def test_sizes_as_operands(dtype):
    check(lambda x: x * x.shape[0] + x.shape[1], make(dtype, 5, 3), dynamic=True)
    check(lambda x: x / x.shape[0], make(dtype, 5, 3), dynamic=True)
    check(lambda x: x.shape[1] - x, make(dtype, 5, 3), dynamic=True)


def test_strided_and_empty_inputs():
    check(lambda x: x.t() + 1, make(f32, 3, 5)[:, ::2])
    check(torch.exp, make(f32, 0, 5))
    check(torch.exp, make(f32, 0, 5), dynamic=True)
    check(torch.add, make(f32), make(f32, 3))


def test_numbers_become_arguments_not_tensors():
    graph, _, _, _ = converted(lambda x: torch.relu(x * 2.5), [make(f32, 3)])
    assert [op.type for op in graph.ops] == ["Data", "Const", "Mul", "Relu", "NetOutput"]


def test_half_products_use_muls():
    graph, _, _, _ = converted(lambda x: x * 0.1, [make(f16, 3)])
    assert [op.type for op in graph.ops] == ["Data", "Muls", "NetOutput"]


def test_the_same_operand_twice_after_two_operands():
    check(lambda a, b: (a * b, a * a, b * b), make(f32, 3), make(f32, 3) + 1)


@pytest.mark.parametrize(("number", "expected"), [(0.1, "Adds"), (0.5, "Add")])
def test_sums_beyond_cpus_keep_numbers_that_16_bits_do_not_hold(number, expected):
    graph, _, _, _ = converted(lambda x: x + number, [torch.empty(3, dtype=f16, device="meta")])
    assert [op.type for op in graph.ops if op.type not in ("Const", "Data", "NetOutput")] == [expected]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_decomposition_that_writes_into_its_own_values(dynamic: bool) -> None:
    check(torch.polar, torch.rand(4), torch.rand(4), dynamic=dynamic)
