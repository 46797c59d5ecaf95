"""`register_kernel`: one line gives an IR op a meaning; wrong ones are refused with what is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torchair
from tests.support.compile import compile_fn
from tests.support.slow import slow
from torchair import ge
from torchair.convert.base.registry import unregister
from torchair.core.errors import BadKernel, UnknownOp
from torchair.engine.registry import has_kernel
from torchair.engine.user_kernels import unregister_kernel

NAME = "UserKernelsTest"
ge.register_prototype(f"{NAME}(x, y?, zs*; k: Float = 2.0, n: Int = 1) -> z")
ge.register_prototype(f"{NAME}Plain(x, y) -> z")


@torch.library.custom_op("user_kernels_test::mix", mutates_args=())
def mix(x: torch.Tensor, zs: list[torch.Tensor], k: float) -> torch.Tensor:
    return x * k + sum(zs)


@mix.register_fake
def _(x: torch.Tensor, zs: list[torch.Tensor], k: float) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    target = torch.ops.user_kernels_test.mix.default

    @torchair.register_fx_node_ge_converter(target)
    def _(x: Any, zs: Any, k: float) -> Any:
        described = {"inputs": {"x": x, "y": None, "zs": zs}, "outputs": ["z"]}
        return ge.custom_op(NAME, attrs={"k": ge.attr.Float(k)}, **described)

    yield
    unregister(target)
    for name in (NAME, f"{NAME}Plain"):
        unregister_kernel(name)


def run_mix(codegen: str = "eager", dynamic: bool = True) -> torch.Tensor:
    x = torch.arange(6.0).reshape(2, 3)
    return compile_fn(mix, codegen=codegen, reset=True, dynamic=dynamic)(x, [x, x + 1], 3.0)


EXPECTED = torch.arange(6.0).reshape(2, 3) * 5 + 1


def test_without_a_kernel_the_torch_op_runs() -> None:
    torch.testing.assert_close(run_mix(), EXPECTED)


@pytest.mark.parametrize("codegen", ["eager", "reference", slow("inductor")])
def test_a_kernel_is_used(codegen: str) -> None:
    """Its result is another one, so that it shows."""

    @ge.register_kernel(NAME)
    def kernel(x: torch.Tensor, y: torch.Tensor | None, zs: list[torch.Tensor], *, k: float, n: int) -> Any:
        assert y is None
        return x * k + zs[0] + zs[1] + 100 * n

    torch.testing.assert_close(run_mix(codegen), EXPECTED + 100)


@pytest.mark.parametrize(
    "kernel",
    [
        lambda x, y, zs, **attrs: x * attrs["k"] + sum(zs) + attrs["n"],
        lambda x, y, zs, n, k: x * k + sum(zs) + n,
        lambda x, y, zs, n=7, *, k: x * k + sum(zs) + n,
    ],
    ids=["any keywords", "attributes behind the inputs", "a default"],
)
def test_register_kernel_accepts_each_signature(kernel: Any) -> None:
    ge.register_kernel(NAME, kernel)
    torch.testing.assert_close(run_mix(), EXPECTED + 1)


def test_registered_again_it_is_another() -> None:
    ge.register_kernel(NAME, lambda x, y, zs, *, k, n: x)
    ge.register_kernel(NAME, lambda x, y, zs, *, k, n: x * 0)
    torch.testing.assert_close(run_mix(), EXPECTED * 0)
    unregister_kernel(NAME)
    torch.testing.assert_close(run_mix(), EXPECTED)


def test_a_function_of_torch() -> None:
    assert ge.register_kernel(f"{NAME}Plain", torch.add) is torch.add
    assert has_kernel(f"{NAME}Plain")


def test_one_of_ours_serves_again() -> None:
    x = torch.randn(3)
    ge.register_kernel("Acos", lambda x: x * 0)
    try:
        torch._dynamo.reset()
        assert torch.compile(torch.acos, backend="npu")(x).abs().sum() == 0
    finally:
        unregister_kernel("Acos")
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(torch.acos, backend="npu")(x / 9), torch.acos(x / 9))


@pytest.mark.parametrize(
    ("op", "kernel", "error", "what"),
    [
        ("UserKernelTest", lambda x: x, UnknownOp, NAME),
        (NAME, lambda x: x, BadKernel, "takes 1 inputs"),
        (NAME, lambda x, y, zs, *, q: x, BadKernel, "'q'"),
        (NAME, 3, BadKernel, "must be a function"),
        (NAME, torch.add, BadKernel, "does not tell its parameters"),
        (torch.add, None, BadKernel, "name of an IR op"),
    ],
    ids=["unknown", "too few", "no such attribute", "no function", "attributes", "no name"],
)
def test_register_kernel_refuses_invalid_kernel(
    op: Any, kernel: Any, error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        ge.register_kernel(op, kernel)
    assert not has_kernel(NAME)


def test_a_device_of_no_known_type_is_refused() -> None:
    with pytest.raises(BadKernel, match="no known type"):
        ge.register_kernel(f"{NAME}Plain", lambda x, y: x, on="cdua")


@pytest.mark.parametrize("is_list", [False, True])
def test_results_of_a_converter_have_the_form_of_the_ops(is_list: bool) -> None:
    target = torch.ops.user_kernels_test.mix.default
    ge.register_kernel(NAME, lambda x, y, zs, *, k, n: x * k + sum(zs))
    unregister(target)

    @torchair.register_fx_node_ge_converter(target)
    def _(x: Any, zs: Any, k: float) -> Any:
        described = {"inputs": {"x": x, "y": None, "zs": zs}, "outputs": ["z"]}
        made = ge.custom_op(NAME, attrs={"k": ge.attr.Float(k)}, **described)
        return [made] if is_list else made

    x = torch.randn(3)
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    backend = torchair.get_npu_backend(compiler_config=config)
    result = torch.compile(lambda x: mix(x, [x, x], 3.0), backend=backend)(x)
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result, x * 5)
