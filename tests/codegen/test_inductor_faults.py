"""What Inductor would get wrong is right here, in both modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchair
from torchair.core.errors import DegradedWarning

MODES = ("max-autotune", "npugraph_ex")


def compiled(fn: Callable[..., Any], mode: str) -> Any:
    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = mode, "inductor"
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)


def writes_after_a_copy(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x[:2].add_(1)
    y = x.clone()
    x[:2].mul_(2)
    return y


def copies_into_another_input(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x[:2].add_(1)
    z.copy_(x)
    x[:2].mul_(2)
    return z + 1


def reads_by_index_in_between(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x.index_put_((torch.tensor([0, 2]),), z[:1], accumulate=True)
    y = x * 1
    x[1].mul_(2)
    return y


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "fn",
    [writes_after_a_copy, copies_into_another_input, reads_by_index_in_between],
    ids=lambda f: f.__name__,
)
def test_values_read_behind_the_write_of_an_input(fn: Callable[..., Any], mode: str) -> None:
    run = compiled(fn, mode)
    with torch.no_grad():
        for _ in range(2):
            given = [torch.randn(4, 2), torch.randn(4, 2)]
            twins = [tensor.clone() for tensor in given]
            torch.testing.assert_close(run(*given), fn(*twins))
            torch.testing.assert_close(given, twins)


@pytest.mark.parametrize("mode", MODES)
def test_an_op_of_which_torch_tells_other_strides(mode: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.unique(x, dim=1) * 2

    run = compiled(fn, mode)
    x = torch.tensor([[3, 1, 3, 2], [0, 1, 0, 2]])
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        torch.no_grad(),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always", DegradedWarning)
        for _ in range(2):
            torch.testing.assert_close(run(x), fn(x))
    assert any("aten.unique_dim.default" in str(one.message) for one in said)


@torch.library.custom_op("airtest::careless", mutates_args=())
def careless(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).t().contiguous().t()


@careless.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_custom_op_with_a_careless_fake() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return careless(x).cumsum(0) + 1

    run, x = compiled(fn, "npugraph_ex"), torch.randn(3, 5)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DegradedWarning)
        for _ in range(2):
            torch.testing.assert_close(run(x), fn(x))
    text = str(said[0].message)
    assert "one has another layout than its fake says" in text
    assert "test_inductor_faults.py" in text
    assert "register_fake" in text
