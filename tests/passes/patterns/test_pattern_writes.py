"""Replacements by custom ops that write: into a result that they are given, or in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchair
from tests.passes.pattern_rules import fires, separate_sets
from torchair.core.errors import BadPass
from torchair.passes.patterns.sets import registry

register = torchair.register_replacement
T = torch.ones(2, 4)
X, Y = torch.randn(3, 5), torch.randn(3, 5)
runs: list[str] = []

own_sets = pytest.fixture(autouse=True)(separate_sets)


@torch.library.custom_op("pattern_writes::add_relu_out", mutates_args=("out",))
def add_relu_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    runs.append("out")
    out.copy_(torch.relu(a + b))


@torch.library.custom_op("pattern_writes::add_relu_", mutates_args=("a",))
def add_relu_(a: torch.Tensor, b: torch.Tensor) -> None:
    runs.append("in place")
    a.add_(b).relu_()


def find(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a + b)


def put_out(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    add_relu_out(a, b, out)
    return out


def put_clone(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    made = a.clone()
    add_relu_(made, b)
    return made


@pytest.mark.filterwarnings("ignore:auto_functionalized_v2 has no converter")
@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
@pytest.mark.parametrize("put", [put_out, put_clone])
def test_an_op_that_writes_what_the_replacement_makes(put: Any, mode: str) -> None:
    register(find, put, (T, T))
    assert fires(find, X, Y) == 1
    config = torchair.CompilerConfig()
    config.mode = mode
    compiled = torch.compile(
        lambda x, y: find(x, y) + x, backend=torchair.get_npu_backend(compiler_config=config)
    )
    x = X.clone()
    runs.clear()
    torch.testing.assert_close(compiled(x, Y), find(X, Y) + X)
    assert len(runs) >= 1
    assert torch.equal(x, X)


def test_an_op_that_writes_an_argument() -> None:
    def put(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        add_relu_(a, b)
        return a.clone()

    with pytest.raises(BadPass, match=r"add_relu_\.default writes the argument arg0_1"):
        register(find, put, (T, T))
    assert registry.OF_TORCHAIR.of_users == []


def test_a_pattern_of_an_op_that_writes() -> None:
    register(put_out, find, (T, T))
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    compiled = torch.compile(put_out, backend=torchair.get_npu_backend(compiler_config=config))
    runs.clear()
    torch.testing.assert_close(compiled(X, Y), find(X, Y))
    assert runs == []
