"""Prims are what decompositions end in: called alone they must mean the same."""

from __future__ import annotations

import pytest
import torch

from tests.convert.aten.test_pointwise import boolean, f32, i64, make
from tests.convert.harness import check, compare
from torchair.convert.convert import convert
from torchair.core.torch_private.fake.fake_tensors import detect_fake_mode, make_fx
from torchair.engine.infer import inference
from torchair.engine.interpret import interpret

prims = torch.ops.prims
UNARY = [
    "abs", "atan", "ceil", "cos", "erf", "exp", "exp2", "floor", "log1p", "log2", "neg", "reciprocal",
    "round", "sign", "sin", "sqrt", "tanh", "trunc", "isfinite",
]  # fmt: skip
BINARY = [
    "add", "atan2", "div", "fmax", "fmod", "hypot", "maximum", "minimum", "mul", "pow", "remainder", "sub",
    "lt", "le", "gt", "ge", "eq", "ne",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary_prim_equals_eager(name):
    check(getattr(prims, name).default, make(f32, 3, 4))


@pytest.mark.parametrize("name", BINARY)
def test_binary_prim_equals_eager(name):
    check(getattr(prims, name).default, make(f32, 3, 4), make(f32, 4, 3).t().contiguous() + 5)


@pytest.mark.parametrize("dtype", [i64, boolean])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise_prim_equals_eager(name, dtype):
    check(getattr(prims, name).default, make(dtype, 3, 4), make(dtype, 3, 4))


@pytest.mark.parametrize("dynamic", [False, True])
def test_selection_and_ranges(dynamic):
    x = make(f32, 3, 4)
    check(lambda x: prims.where(x > 0, x, x * 2), x, dynamic=dynamic)
    check(
        lambda x: prims.iota(x.shape[0], start=2, step=3, dtype=i64, device="cpu", requires_grad=False),
        x,
        dynamic=dynamic,
    )


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: prims.broadcast_in_dim(x, [2, 3, 5, 4], [1, 3]),
        lambda x: prims.transpose(x, [1, 0]),
        lambda x: prims.squeeze(prims.broadcast_in_dim(x, [1, 3, 4], [1, 2]), [0]),
    ],
)
def test_view_prims_convert(fn):
    """They cannot be functionalised, so only decompositions contain them."""
    x = make(f32, 3, 4)
    gm = make_fx(fn, tracing_mode="fake")(x)
    fake_mode = detect_fake_mode([node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"])
    graph, report = convert(gm, inference(fake_mode, x.device), fake_mode)
    assert not report.fallbacks
    compare(interpret(graph, [x], x.device), [fn(x)])


def test_integer_division_truncates():
    check(prims.div.default, torch.tensor([7, -7]), torch.tensor([2, 2]))


def test_isfinite_prim_sees_nan_and_infinity():
    check(prims.isfinite.default, torch.tensor([1.0, float("nan"), float("inf")]))
