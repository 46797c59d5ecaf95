"""Products with a vector become sums of products, equal to the op; others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import make_tensor

import torchair
from tests.codegen.tracing import trace
from tests.support.simulated_device import SimulatedDevice
from torchair.codegen import CodegenOptions, build
from torchair.codegen.base.graph_prep import fake_mode_of
from torchair.codegen.inductor import inductor_program
from torchair.codegen.inductor.gemv import PRODUCTS, sum_products

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "row": (torch.mm, ((1, 12), (12, 7))),
    "column": (torch.mm, ((5, 12), (12, 1))),
    "dot": (torch.mm, ((1, 12), (12, 1))),
    "no terms": (torch.mm, ((1, 0), (0, 7))),
    "no columns": (torch.mm, ((1, 12), (12, 0))),
    "transposed": (lambda a, b: torch.mm(a, b.t()), ((1, 12), (7, 12))),
    "bias": (torch.addmm, ((7,), (1, 12), (12, 7))),
    "scaled bias": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), ((1, 7), (1, 12), (12, 7))),
    "no bias": (
        lambda c, a, b: torch.addmm(c * torch.nan, a, b, beta=0),
        ((7,), (1, 12), (12, 7)),
    ),
    "batch": (torch.bmm, ((3, 1, 12), (3, 12, 7))),
    "batch, transposed": (lambda a, b: torch.bmm(a, b.transpose(1, 2)), ((3, 1, 12), (3, 7, 12))),
    "batch of columns": (lambda a, b: torch.bmm(a.transpose(0, 1), b), ((5, 3, 12), (3, 12, 1))),
    "batch and bias": (torch.baddbmm, ((3, 1, 7), (3, 1, 12), (3, 12, 7))),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_gemv_rewrite_equals_product(name: str, dtype: torch.dtype) -> None:
    fn, shapes = CALLS[name]
    args = [make_tensor(shape, dtype=dtype, device="cpu", low=-2, high=2) for shape in shapes]
    traced = trace(lambda *args: [fn(*args)], *args, decompose=False)
    mode = fake_mode_of(traced.gm, traced.inputs)
    assert mode is not None
    found = sum_products(traced.gm, mode)
    assert found == max(args[-2].numel(), args[-1].numel())
    assert not [node for node in traced.gm.graph.nodes if node.target in PRODUCTS]
    (result,), expected = traced.gm(*args), fn(*args)
    torch.testing.assert_close(result, expected)
    assert result.is_contiguous()
    (returned,) = traced.gm.graph.output_node().args[0]
    assert returned.meta["val"].dtype is expected.dtype
    assert returned.meta["val"].shape == expected.shape


@pytest.mark.parametrize(
    ("shapes", "dtype", "dynamic"),
    [
        (((2, 12), (12, 7)), torch.float32, ()),
        (((1, 12), (12, 7)), torch.int64, ()),
        (((1, 12), (12, 7)), torch.complex64, ()),
        (((12, 1), (1, 7)), torch.float32, ()),
        (((4, 12), (12, 1)), torch.float32, (0,)),
    ],
    ids=str,
)
def test_gemv_rewrite_leaves_other_products(shapes: Any, dtype: torch.dtype, dynamic: Any) -> None:
    args = [make_tensor(shape, dtype=dtype, device="cpu") for shape in shapes]
    traced = trace(lambda a, b: [torch.mm(a, b)], *args, dynamic=dynamic, decompose=False)
    mode = fake_mode_of(traced.gm, traced.inputs)
    assert mode is not None
    assert sum_products(traced.gm, mode) == 0
    assert [node for node in traced.gm.graph.nodes if node.target in PRODUCTS]


def step(x: torch.Tensor, scale: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """A norm and three products that read it."""
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * scale
    return [y @ q, torch.relu(y @ k), torch.addmm(scale[:, : v.shape[1]], y, v)]


def arguments(width: int, device: str) -> list[torch.Tensor]:
    shapes = (1, width), (1, width), (width, width), (width, width // 4), (width, width // 4)
    return [make_tensor(shape, dtype=torch.float32, device=device, low=-1, high=1) for shape in shapes]


@pytest.mark.parametrize(("width", "searches"), [(64, False), (1024, True)])
def test_block_sizes_are_searched_for_large_matrices(
    width: int, searches: bool, row: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device whose row asks for it; the norm is computed once, and not in every product."""
    row.tuned = {"combo_kernels": True}
    seen: list[tuple[bool, bool]] = []
    compile_fx_inner = inductor_program.compile_fx_inner

    def spy(*args: Any, **kwargs: Any) -> Any:
        config = inductor_program.inductor_config
        seen.append((config.coordinate_descent_tuning, config.combo_kernels))
        return compile_fx_inner(*args, **kwargs)

    monkeypatch.setattr(inductor_program, "compile_fx_inner", spy)
    args = arguments(width, "cpu")
    traced = trace(step, *args)
    for tuned in (True, False):
        program = build("inductor", traced.gm, traced.inputs, CodegenOptions(tuned=tuned))
        torch.testing.assert_close(list(program(list(args))), step(*args), rtol=1e-4, atol=1e-4)
        assert ("extern_kernels.mm(" in program.source) is not tuned
    assert seen == [(searches, True), (False, False)]


SPELLINGS: dict[str, Callable[..., Any]] = {
    "a column and nothing": lambda x: (x[:, 3] + torch.zeros(16)).view(1, 16),
    "a column times one": lambda x: (x[:, 3] * torch.ones(16)).view(1, 16),
    "a row and nothing": lambda x: (x[3] - torch.zeros(16)).view(1, 16),
    "a row over one": lambda x: (x.t()[-1:] / torch.ones(16)).view(1, 16),
    "one number and nothing": lambda x: (x[:1, :1].expand(1, 16) + torch.zeros(1, 16)).view(1, 16),
    "a copy of a column": lambda x: x[:, 3].clone().view(1, 16),
    "to the first": lambda x: x[:, 3].pow(1).view(1, 16),
    "to its own type": lambda x: x[:, 3].to(torch.float64).to(torch.float32).view(1, 16),
    "computed": lambda x: torch.relu(x[:, 3]).view(1, 16),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_vectors_that_passes_take_apart(name: str, row: SimulatedDevice) -> None:
    """Ops that do nothing go: a product must not read their input as if it were their result."""
    row.tuned = {"combo_kernels": False}
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "inductor"

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return SPELLINGS[name](x) @ w

    run = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
    for _ in range(2):
        x, w = torch.randn(16, 16), torch.randn(16, 8)
        torch.testing.assert_close(run(x, w), fn(x, w))


@pytest.mark.cuda
def test_products_share_a_launch() -> None:
    args = arguments(256, "cuda")
    traced = trace(step, *args)
    program = build("inductor", traced.gm, traced.inputs, CodegenOptions(tuned=True))
    torch.testing.assert_close(list(program(list(args))), step(*args), rtol=1e-4, atol=1e-4)
    assert "extern_kernels.mm(" not in program.source
    assert program.source.count(".run(") < 1 + 3  # the norm, and a launch for each product
