"""Reductions and scans against eager, with and without symbolic sizes."""

from __future__ import annotations

import pytest
import torch

import torchair
from tests.convert.harness import check

X = torch.randn(4, 6, 3)
NAN = torch.tensor([[1.0, float("nan"), 3.0], [float("inf"), -1.0, 0.0], [-float("inf")] * 3])
ROWS = {
    "sum": (lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True), x.sum([])), X),
    "sum_dtype": (lambda x: (x.sum(dtype=torch.float64), x.sum(0, dtype=torch.float64)), X),
    "sum_int": (lambda x: (x.sum(), x.sum(0), (x > 0).sum(1), x.int().sum(-1)), (X * 5).long()),
    "mean": (lambda x: (x.mean(), x.mean(-1, keepdim=True), x.mean((0, 2))), X),
    "mean_dtype": (lambda x: x.mean(0, dtype=torch.float64), X),
    "amax_amin": (lambda x: (x.amax(), x.amin((0, 1)), x.amax(-1, keepdim=True)), X),
    "max_min": (lambda x: (x.max(), x.min(), *x.max(1), *x.min(-1, keepdim=True)), X),
    "max_int": (lambda x: (x.max(), *x.max(0), *x.min(0)), torch.arange(12).reshape(4, 3)),
    "nan": (lambda x: (x.max(), x.min(), x.amax(0), *x.max(1), *x.min(0), x.argmax(1), x.argmin()), NAN),
    "argmax": (lambda x: (x.argmax(), x.argmax(1), x.argmin(0, keepdim=True), x.argmin(keepdim=True)), X),
    "prod": (lambda x: (x.prod(), x.prod(1), x.prod(0, keepdim=True), x.prod(dtype=torch.float64)), X),
    "prod_int": (lambda x: (x.prod(), x.prod(0)), torch.arange(1, 7).int().reshape(2, 3)),
    "any_all": (
        lambda x: ((x > 0).any(), (x > 0).all(1), (x > 2).any((0, 1)), x.any(0), x.all(-1, keepdim=True)),
        X,
    ),
    "any_uint8": (lambda x: (x.any(), x.all(0), x.any(1)), torch.tensor([[0, 1], [0, 0]], dtype=torch.uint8)),
    "any_nothing": (lambda x: (torch.any(x, dim=()), torch.all(x, dim=())), X),
    "var": (
        lambda x: (x.var(), x.var(1), x.var((0, 2), correction=0, keepdim=True), x.var(1, correction=2)),
        X,
    ),
    "std": (
        lambda x: (x.std(), x.std(1), x.std((0, 2), correction=0, keepdim=True), x.std(1, correction=2)),
        X,
    ),
    "var_mean": (lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x, (0, 1), correction=0)), X),
    "var_fraction": (
        lambda x: (
            *torch.var_mean(x, (0, 2), correction=0.5),
            *torch.std_mean(x, correction=1.5, keepdim=True),
        ),
        X,
    ),
    "logsumexp": (lambda x: (x.logsumexp(1), x.logsumexp((0, 2), keepdim=True)), X),
    "logsumexp_infinite": (lambda x: x.logsumexp(1), NAN),
    "norms": (
        lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (2, 1, 0, 3, 0.5, float("inf"), -float("inf"))],
        X,
    ),
    "norm": (lambda x: (x.norm(), x.norm(1, 0), torch.linalg.vector_norm(x, keepdim=True)), X),
    "cumsum": (lambda x: (x.cumsum(0), x.cumsum(-1), (x > 0).cumsum(1), x.cumsum(1, dtype=torch.float64)), X),
    "cumprod": (lambda x: (x.cumprod(0), x.long().cumprod(1)), X),
    "cummax": (lambda x: (*x.cummax(1), *x.cummin(0)), X),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), X),
    "histc": (lambda x: (x.histc(5, -1, 1), x.histc(4)), X),
    "scalar": (
        lambda x: (x.sum(), x.mean(), x.amax(), x.max(), x.prod(), x.any(), x.cumsum(0), x.sum(0)),
        torch.tensor(2.0),
    ),
    "zero_size": (
        lambda x: (x.sum(0), x.mean(), x.prod(), x.any(0), x.cumsum(0), x.sum()),
        torch.empty(0, 3),
    ),
    "transposed": (lambda x: (x.transpose(0, 2).sum(1), x.mT.amax(-1), x.permute(2, 0, 1).argmax(0)), X),
    "aminmax": (lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=1)), X),
    "nansum": (lambda x: (x.nansum(), x.nansum(1)), NAN),
    "trace": (lambda x: x[0].trace(), X),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS)
def test_reduction_equals_eager(row: str, dynamic: bool) -> None:
    fn, *args = ROWS[row]
    check(fn, *args, dynamic=dynamic)


@pytest.mark.parametrize("codegen", ["reference", "eager"])
def test_sums_begin_with_zero(codegen: str) -> None:
    """So that -0.0 alone becomes 0.0, also without any dim."""

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(), x.mean(0), x.nansum(), x.logsumexp(0), x.amax(0), x.prod()]

    for x in (torch.tensor(-0.0), torch.tensor([-0.0])):
        torch.compiler.reset()
        config = torchair.CompilerConfig()
        config.engine_config.codegen = codegen
        got = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config))(x)
        assert [t.signbit().item() for t in got] == [t.signbit().item() for t in fn(x)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduction_in_half_precision_equals_eager(dtype: torch.dtype) -> None:
    x = torch.randn(8, 33).to(dtype)
    check(
        lambda x: (x.sum(1), x.mean(0), x.var(1), x.std(), x.amax(1), x.logsumexp(1), x.cumsum(1), x.prod(0)),
        x,
    )


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.filterwarnings("ignore:var")
def test_too_few_elements() -> None:
    check(lambda x: (x.var(1), x.std(1), x.var(1, correction=0), x.var(0, correction=5)), torch.randn(3, 1))


@pytest.mark.filterwarnings("ignore:std_mean")
@pytest.mark.filterwarnings("ignore:var_mean")
@pytest.mark.parametrize("backend", ["npu", "npugraph_ex"])
def test_moments_of_nothing(backend: str) -> None:
    def moments(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *torch.var_mean(x), *torch.std_mean(x, 0), *torch.var_mean(x, 1, keepdim=True)

    x = torch.empty(0, 5)
    torch.testing.assert_close(torch.compile(moments, backend=backend)(x), moments(x), equal_nan=True)
