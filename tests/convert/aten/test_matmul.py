"""Matrix products."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from tests.convert.harness import check, compare
from torchair.convert.convert import convert
from torchair.engine.infer import inference
from torchair.engine.interpret import interpret

aten = torch.ops.aten
f32, bf16, f16, i64 = torch.float32, torch.bfloat16, torch.float16, torch.int64


def rand(*shape, dtype=f32):
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype is i64:
        return torch.randint(-5, 6, shape, generator=generator)
    return torch.randn(shape, generator=generator).to(dtype)


PRODUCTS = {
    "mm": (torch.mm, [(3, 4), (4, 5)]),
    "mm_transposed": (lambda a, b: torch.mm(a.t(), b.t()), [(4, 3), (5, 4)]),
    "mm_empty_inner": (torch.mm, [(3, 0), (0, 5)]),
    "mm_empty": (torch.mm, [(0, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "matmul_broadcast": (torch.matmul, [(2, 1, 3, 4), (6, 4, 5)]),
    "mv": (torch.mv, [(3, 4), (4,)]),
    "dot": (torch.dot, [(4,), (4,)]),
    "addmv": (lambda c, a, b: torch.addmv(c, a, b, beta=2, alpha=3), [(3,), (3, 4), (4,)]),
    "addmm_bias": (torch.addmm, [(5,), (3, 4), (4, 5)]),
    "addmm_matrix": (torch.addmm, [(3, 5), (3, 4), (4, 5)]),
    "addmm_scaled": (lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3), [(1, 5), (3, 4), (4, 5)]),
    "addmm_scaled_bias": (lambda c, a, b: torch.addmm(c, a, b, beta=2), [(5,), (3, 4), (4, 5)]),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "baddbmm_scaled": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=3), [(1, 1, 5), (2, 3, 4), (2, 4, 5)],
    ),
    "addbmm": (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)]),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), [(2, 3, 4), (2, 5, 4)]),
    "outer": (torch.outer, [(3,), (4,)]),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [f32, i64])
@pytest.mark.parametrize("name", PRODUCTS)
def test_product_equals_eager(name, dtype, dynamic):
    fn, shapes = PRODUCTS[name]
    check(fn, *[rand(*shape, dtype=dtype) for shape in shapes], dynamic=dynamic)


@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize("name", ["mm", "bmm", "addmm_bias", "addmm_scaled", "baddbmm"])
def test_products_in_half_precision(name, dtype):
    fn, shapes = PRODUCTS[name]
    # Eager rounds alpha * product + beta * c once, the graph each step.
    check(fn, *[rand(*shape, dtype=dtype) for shape in shapes], rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("fn", [torch.addmm, torch.baddbmm, torch.addbmm])
def test_beta_zero_drops_nan(fn):
    a, b = (rand(3, 4), rand(4, 5)) if fn is torch.addmm else (rand(2, 3, 4), rand(2, 4, 5))
    nan = torch.full((3, 5), torch.nan)
    check(lambda c, a, b: fn(c, a, b, beta=0), nan, a, b)


def whole_call(target, *args, expected):
    """Convert one call that tracing would take apart, run it, compare; returns the types of the IR ops."""
    mode = torch._subclasses.FakeTensorMode()
    graph = fx.Graph()
    nodes = []
    for index, arg in enumerate(args):
        is_tensor = isinstance(arg, torch.Tensor)
        nodes.append(graph.placeholder(f"x{index}") if is_tensor else arg)
        if is_tensor:
            nodes[-1].meta["val"] = mode.from_tensor(arg)
    call = graph.call_function(target, tuple(nodes))
    several = isinstance(expected, tuple)
    call.meta["val"] = tuple(map(mode.from_tensor, expected)) if several else mode.from_tensor(expected)
    results = [call]
    if several:
        results = [graph.call_function(operator.getitem, (call, index)) for index in range(len(expected))]
        for node, value in zip(results, call.meta["val"], strict=True):
            node.meta["val"] = value
    graph.output(tuple(results))
    cpu = torch.device("cpu")
    made, report = convert(fx.GraphModule(torch.nn.Module(), graph), inference(mode, cpu), mode)
    assert not report.fallbacks, report.fallbacks
    assert not report.decomposed, report.decomposed
    compare(
        interpret(made, [arg for arg in args if isinstance(arg, torch.Tensor)], cpu),
        list(expected) if several else [expected],
    )
    return {op.type for op in made.ops}


@pytest.mark.parametrize(
    ("shape", "bias", "op"),
    [((6, 4), True, "MatMulV2"), ((2, 3, 4), True, "BatchMatMulV2"), ((2, 3, 4), False, "BatchMatMulV2")],
)
def test_linear_equals_eager(shape, bias, op):
    operands = [rand(*shape), rand(5, 4), *([rand(5)] if bias else [])]
    assert op in whole_call(aten.linear.default, *operands, expected=F.linear(*operands))
    check(F.linear, *operands)


@pytest.mark.parametrize(
    ("a", "b", "op"),
    [((3, 4), (4, 5), "MatMul"), ((2, 3, 4), (4, 5), "BatchMatMul"), ((3, 4), (2, 4, 5), "BatchMatMul")],
)
def test_matmul_equals_eager(a, b, op):
    a, b = rand(*a), rand(*b)
    assert op in whole_call(aten.matmul.default, a, b, expected=torch.matmul(a, b))


def test_matmul_backward():
    a, b, grad = rand(2, 3, 4).requires_grad_(), rand(2, 4, 5).requires_grad_(), rand(2, 3, 5)
    expected = torch.autograd.grad(a @ b, (a, b), grad)
    whole_call(aten.matmul_backward.default, grad, a.detach(), b.detach(), [True, True], expected=expected)


GROUPS = [[3, 3, 10], [0, 10, 10], [10, 10, 10]]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("ends", GROUPS)
@pytest.mark.parametrize("widths", [(16, 32), (16, 8)])
def test_grouped_rows(ends, widths, dynamic):
    inner, outer = widths
    operands = (
        rand(10, inner, dtype=bf16),
        rand(3, inner, outer, dtype=bf16),
        torch.tensor(ends, dtype=torch.int32),
    )
    check(lambda x, w, ends: aten._grouped_mm(x, w, ends), *operands, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_grouped_inner_dim(dynamic):
    operands = rand(16, 24, dtype=bf16), rand(24, 32, dtype=bf16), torch.tensor([8, 8, 24], dtype=torch.int32)
    check(lambda x, w, ends: aten._grouped_mm(x, w, ends), *operands, dynamic=dynamic, rtol=2e-2, atol=2e-2)


def test_batch_of_groups():
    check(lambda x, w: aten._grouped_mm(x, w), rand(2, 16, 24, dtype=bf16), rand(2, 24, 32, dtype=bf16))


@pytest.mark.parametrize("ends", GROUPS)
def test_an_op_of_a_library_that_need_not_be_installed(ends):
    pytest.importorskip("transformers.integrations.moe")
    target = torch.ops.transformers.grouped_mm_fallback.default
    operands = rand(10, 16), rand(3, 16, 6), torch.tensor(ends, dtype=torch.int32)
    assert "GroupedMatmul" in whole_call(target, *operands, expected=target(*operands))
    check(lambda x, w, ends: target(x, w, ends), *operands, dynamic=True)
