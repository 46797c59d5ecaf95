"""Ops on lists of tensors: every overload is one GE op, and mixed lists fall back instead of being wrong."""

from __future__ import annotations

import pytest
import torch

from tests.convert.aten.test_pointwise import bf16, f16, f32, i32, make
from tests.convert.harness import check, converted
from torchair.core import dtypes

aten = torch.ops.aten
UNARY = (
    "abs acos asin atan cos cosh erf erfc exp expm1 log log10 log1p log2 "
    "neg reciprocal sigmoid sin sinh sqrt tan tanh"
)
ROUNDING = "floor ceil round trunc frac"


def two(dtype, low=-4):
    """Two tensors of different shapes."""
    return make(dtype, 3, 4, low=low), make(dtype, 5, low=low)


@pytest.mark.parametrize("name", [*UNARY.split(), *ROUNDING.split()])
def test_foreach_unary_is_one_op(name):
    check(lambda a, b: getattr(torch, f"_foreach_{name}")([a, b]), *two(f32))


@pytest.mark.parametrize("dtype", [f32, bf16, i32])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "minimum", "clamp_min", "clamp_max"])
def test_foreach_binary_is_one_op(name, dtype):
    packet = getattr(aten, f"_foreach_{name}")
    check(lambda a, b: packet.Scalar([a, b], 2), *two(dtype))
    check(lambda a, b: packet.ScalarList([a, b], [2, 3]), *two(dtype))
    check(lambda a, b: packet.List([a, b], [b.sum() + a, b + b]), *two(dtype))


@pytest.mark.parametrize("name", ["div", "pow"])
def test_division_and_powers(name):
    packet = getattr(aten, f"_foreach_{name}")
    check(lambda a, b: packet.Scalar([a, b], 2.5), *two(f32, low=1))
    check(lambda a, b: packet.ScalarList([a, b], [2.0, 0.5]), *two(f32, low=1))
    check(lambda a, b: packet.List([a, b], [a + 1, b + 2]), *two(f32, low=1))
    check(lambda a, b: aten._foreach_pow.ScalarAndTensor(2.0, [a, b]), *two(f32))


def test_foreach_with_alpha_equals_eager():
    check(lambda a, b: torch._foreach_add([a, b], [a, b], alpha=3), *two(f32))
    check(lambda a, b: torch._foreach_sub([a, b], [a, b], alpha=0.5), *two(bf16))


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_accumulation(name):
    packet = getattr(aten, f"_foreach_{name}")
    check(lambda a, b: packet.Scalar([a, b], [a, b], [a, b], 0.5), *two(f32, low=1))
    check(lambda a, b: packet.ScalarList([a, b], [a, b], [a, b], [0.5, 2.0]), *two(f32, low=1))


def test_lerp_and_norm():
    check(lambda a, b: torch._foreach_lerp([a, b], [b.sum() + a, b * 2], 0.3), *two(f32))
    check(lambda a, b: torch._foreach_lerp([a, b], [a * 2, b * 2], [a, b]), *two(f32))
    check(lambda a, b: torch._foreach_norm([a, b]), *two(f32))
    check(lambda a, b: torch._foreach_norm([a, b], 1), *two(f32))


def test_symbolic_sizes():
    check(lambda a, b: torch._foreach_mul(torch._foreach_add([a, b], 1.5), [a, b]), *two(f32), dynamic=True)


def constant_beside(fn, dtype):
    """The dtype (by name) and the shape of the only constant of a list op, which is not rounded."""
    args = [x.abs() + 1 for x in two(dtype, low=1)]
    check(fn, *args)
    graph, _, _, _ = converted(fn, args)
    (op,) = [op for op in graph.ops if op.type.startswith("Foreach")]
    (tensor,) = [tensor for tensor in op.inputs if tensor.op.type == "Const"]
    return dtypes.BY_RUNTIME[tensor.dtype].name, tuple(tensor.op.attrs["value"].value.shape)


SCALARS = {f32: "FLOAT", f16: "FLOAT16", bf16: "FLOAT", i32: "INT32"}
SCALAR_LISTS = {f32: "FLOAT", f16: "FLOAT16", bf16: "BF16", i32: "INT64"}


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "pow"])
def test_numbers_are_constants_as_ascend_takes_them(name, dtype):
    packet = getattr(aten, f"_foreach_{name}")
    assert constant_beside(lambda a, b: packet.Scalar([a, b], 2), dtype) == (SCALARS[dtype], ())
    assert constant_beside(lambda a, b: packet.ScalarList([a, b], [2, 3]), dtype) == (
        SCALAR_LISTS[dtype],
        (2,),
    )


@pytest.mark.parametrize("dtype", SCALARS)
def test_other_numbers_are_constants_as_ascend_takes_them(dtype):
    alpha = constant_beside(lambda a, b: aten._foreach_add.List([a, b], [a, b], alpha=2), dtype)
    assert alpha == (SCALARS[dtype], ())
    value = constant_beside(lambda a, b: aten._foreach_addcmul.Scalar([a, b], [a, b], [a, b]), dtype)
    assert value == (SCALARS[dtype], ())
    values = constant_beside(
        lambda a, b: aten._foreach_addcmul.ScalarList([a, b], [a, b], [a, b], [2, 3]), dtype
    )
    assert values == (SCALAR_LISTS[dtype], (2,))
    base = constant_beside(lambda a, b: aten._foreach_pow.ScalarAndTensor(2, [a, b]), dtype)
    assert base == ("INT32" if dtype is i32 else "FLOAT", ())


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_modes_and_weights_of_floats(dtype):
    mode = constant_beside(lambda a, b: aten._foreach_ceil([a / 2, b / 2]), dtype)
    assert mode == ("INT8", (1,))
    weight = constant_beside(lambda a, b: aten._foreach_lerp.Scalar([a, b], [b.sum() + a, b * 2], 0.3), dtype)
    assert weight == ("FLOAT", ())
    order = constant_beside(lambda a, b: aten._foreach_norm.Scalar([a, b], 2), dtype)
    assert order == ("FLOAT", ())


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_tensors_of_weights_are_never_bf16(dtype):
    def fn(a, b):
        return aten._foreach_lerp.List([a, b], [a * 2, b + 1], [a / 8, b / 16])

    check(fn, *two(dtype, low=1))
    graph, _, _, _ = converted(fn, two(dtype, low=1))
    (op,) = [op for op in graph.ops if op.type == "ForeachLerpList"]
    weights = {dtypes.BY_RUNTIME[tensor.dtype].name for tensor in op.inputs[4:]}
    assert weights == {"FLOAT16" if dtype is f16 else "FLOAT"}


def test_tensors_without_dims_are_not_widened():
    check(lambda a, b: aten._foreach_mul.ScalarList([a[0, 0], b[0]], [2, 3]), *two(i32))
    check(lambda a, b: aten._foreach_add.ScalarList([a[0, 0], b[0]], [2, 0.5]), *two(bf16))


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("name", ["add", "mul", "addcmul", "addcdiv"])
def test_numbers_that_halves_would_round_go_one_by_one(name, dtype):
    """ATen computes with all their digits."""
    lists = 3 if name.startswith("addc") else 1

    def fn(a, b):
        return getattr(aten, f"_foreach_{name}").ScalarList(*[[a, b]] * lists, [0.1, 2.0])

    check(fn, *two(dtype, low=1))
    graph, _, _, _ = converted(fn, two(dtype, low=1))
    assert not [op.type for op in graph.ops if op.type.startswith("Foreach")]


def test_one_op_for_the_list():
    graph, _, _, _ = converted(lambda a, b: torch._foreach_add([a, b], 1), two(f32))
    assert [op.type for op in graph.ops if op.type not in ("Data", "Const", "NetOutput")] == [
        "ForeachAddScalar"
    ]


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: torch._foreach_add([a, b.long()], 1),
        lambda a, b: torch._foreach_mul([a, b], [a[0], b]),
        lambda a, b: torch._foreach_mul([a.half(), b.half()], 0.1),
        lambda a, b: torch._foreach_sub([a, b.double()], [b.sum(), b], alpha=2),
        lambda a, b: torch._foreach_pow([a.abs(), b.double().abs()], [2.5, 3.0]),
        lambda a, b: torch._foreach_maximum([a, b.double()], 0.25),
        lambda a, b: torch._foreach_exp([a, b.double()]),
        lambda a, b: torch._foreach_floor([a / 3, b.double() / 3]),
    ],
)
def test_lists_that_do_not_fit_go_one_by_one(fn):
    check(fn, *two(f32))


LEFT = {
    "rsqrt": lambda a, b: torch.ops.aten._foreach_rsqrt([a.abs(), b.abs()]),
    "sign": lambda a, b: torch._foreach_sign([a, b]),
    "lgamma": lambda a, b: torch._foreach_lgamma([a.abs() + 1, b.abs() + 1]),
    "max": lambda a, b: torch._foreach_max([a, b]),
    "zero": lambda a, b: torch.ops.aten._foreach_zero([a, b]),
    "add": lambda a, b: torch._foreach_add([a, b], a.sum(), alpha=2),
    "mul": lambda a, b: torch._foreach_mul([a, b.double()], b.sum()),
    "div": lambda a, b: torch._foreach_div([a, b], b.abs().sum() + 1),
    "lerp": lambda a, b: torch.ops.aten._foreach_lerp([a, b], [a + 1, b * 2], [0.25, 0.75]),
    "clone": lambda a, b: torch.ops.aten._foreach_clone([a, b]),
    "powsum": lambda a, b: torch.ops.aten._foreach_powsum([a, b], 3),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LEFT)
def test_one_by_one(name, dynamic):
    if name in ("clone", "powsum") and not hasattr(torch.ops.aten, f"_foreach_{name}"):
        pytest.skip("this torch does not have it")
    if name == "max" and dynamic:
        pytest.skip("torch itself asks for the number of elements")
    check(LEFT[name], *two(f32), dynamic=dynamic)
