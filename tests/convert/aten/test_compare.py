"""Comparisons, logic, bits and selection."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.convert.aten.test_pointwise import bf16, boolean, f16, f32, f64, i32, i64, make, u8
from tests.convert.harness import check, converted
from torchair.engine.interpret import interpret

COMPARISONS = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)


@pytest.mark.parametrize(
    "dtypes", [(f32, f32), (i64, f32), (boolean, boolean), (i32, i64), (u8, boolean)], ids=str
)
@pytest.mark.parametrize("fn", COMPARISONS, ids=lambda fn: fn.__name__)
def test_comparison_of_tensors(fn, dtypes):
    check(fn, make(dtypes[0], 3, 4), make(dtypes[1], 4))


@pytest.mark.parametrize("dtype", [f32, i64, bf16, boolean])
@pytest.mark.parametrize("fn", COMPARISONS, ids=lambda fn: fn.__name__)
def test_comparison_with_a_number(fn, dtype):
    """A fractional number is not cut down to the integers of the tensor."""
    check(lambda x: (fn(x, 1.5), fn(x, 1), fn(x, True)), make(dtype, 3, 4))


def test_comparison_with_a_zero_dim_tensor_and_a_size():
    check(torch.lt, make(i64, 4), torch.tensor(1.5))
    check(torch.lt, make(f16, 4), torch.tensor(1.5, dtype=f64))
    check(lambda x: x < x.shape[0], make(i64, 4, 3), dynamic=True)
    check(lambda x: x == x.shape[1], make(f32, 4, 3), dynamic=True)


@pytest.mark.parametrize("dtype", [f32, i64, boolean])
@pytest.mark.parametrize("fn", [torch.logical_and, torch.logical_or, torch.logical_xor])
def test_logical_op_equals_eager(fn, dtype):
    check(fn, make(dtype, 3, 4), make(boolean, 4))
    check(torch.logical_not, make(dtype, 3, 4))


@pytest.mark.parametrize("dtype", [i64, i32, boolean])
@pytest.mark.parametrize("fn", [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor])
def test_bitwise_op_equals_eager(fn, dtype):
    check(fn, make(dtype, 3, 4), make(dtype, 4))
    check(lambda x: fn(x, x.dtype is boolean or 3), make(dtype, 3, 4))
    check(torch.bitwise_not, make(dtype, 3, 4))


def test_shift_equals_eager():
    check(torch.bitwise_left_shift, make(i64, 3, 4), torch.tensor(2))
    check(lambda x: x >> 1, make(i64, 3, 4, low=-9, high=9))
    check(lambda x: x << 1, make(i32, 3, 4))


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -2.0, float("nan"), float("inf"), -float("inf")])


@pytest.mark.parametrize(
    "x", [SPECIAL, SPECIAL.bfloat16(), make(i64, 4), make(boolean, 4)], ids=lambda x: str(x.dtype)
)
@pytest.mark.parametrize(
    "fn", [torch.isnan, torch.isinf, torch.isfinite, torch.isposinf, torch.isneginf, torch.signbit]
)
def test_questions_about_floats(fn, x):
    check(fn, x)


def test_questions_about_complex_numbers():
    x = torch.complex(SPECIAL, SPECIAL.flip(0))
    check(lambda x: (torch.isnan(x), torch.isinf(x)), x)


def test_copysign_heaviside_fmax_with_special_values():
    other = SPECIAL.flip(0)
    check(torch.copysign, SPECIAL, other)
    check(lambda x: torch.copysign(x, -2), make(f32, 4))
    check(torch.heaviside, SPECIAL, torch.full((7,), 0.5))
    check(torch.fmax, SPECIAL, other)
    check(torch.fmin, SPECIAL, other)


@pytest.mark.parametrize("dynamic", [False, True])
def test_where_and_masked_fill(dynamic):
    mask = make(boolean, 3, 4)
    check(torch.where, mask, make(f32, 3, 4), make(i64, 4), dynamic=dynamic)
    check(lambda m, x: torch.where(m, x, 0.5), mask, make(f16, 3, 4), dynamic=dynamic)
    check(lambda x, m: x.masked_fill(m, float("-inf")), make(f32, 2, 3, 4), mask, dynamic=dynamic)
    check(lambda x, m: x.masked_fill(m, -7), make(i64, 4), mask, dynamic=dynamic)
    check(
        lambda x, m, v: x.masked_fill(m, v),
        make(bf16, 3, 4),
        mask,
        torch.tensor(0.25, dtype=bf16),
        dynamic=dynamic,
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m, v: x.masked_fill(m, -1.0),
        lambda x, m, v: x.masked_fill(m, v),
        lambda x, m, v: torch.ops.aten._safe_softmax(x, -1),
    ],
)
def test_masked_fill_does_not_ask_the_device(function):
    """A value that is a tensor would be read back, which cannot be recorded."""
    args = [make(f32, 3, 4), make(boolean, 3, 4), torch.tensor(0.25)]
    graph, _, _, _ = converted(function, args)
    assert "MaskedFill" in [op.type for op in graph.ops]
    traced = make_fx(lambda *given: interpret(graph, list(given), given[0].device))(*args)
    assert not traced.graph.find_nodes(op="call_function", target=torch.ops.aten.masked_fill.Tensor)


def test_masked_fill_is_one_op_unless_the_mask_is_larger():
    mask = make(boolean, 3, 4)
    same, _, _, _ = converted(lambda x, m: x.masked_fill(m, 1.0), [make(f32, 3, 4), mask])
    larger, _, _, _ = converted(lambda x, m: x.masked_fill(m, 1.0), [make(f32, 4), mask])
    assert "MaskedFill" in [op.type for op in same.ops]
    assert "SelectV2" in [op.type for op in larger.ops]
