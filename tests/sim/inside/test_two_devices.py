"""Compiled functions that take, make and return tensors of the host and of the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.sim.inside.test_compiled import MODES
from tests.support.compile import compile_fn
from tests.support.slow import slow

CREATES: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
    "arange": lambda x, to: torch.arange(3, device=to) + 2,
    "constant": lambda x, to: torch.tensor([1.0, 2.0], device=to) * 2,
    "empty": lambda x, to: torch.empty_like(x, device=to).fill_(3),
    "eye": lambda x, to: torch.eye(2, device=to),
    "full": lambda x, to: torch.full((2,), 3.0, device=to),
    "full_like": lambda x, to: torch.full_like(x, 2.0, device=to),
    "linspace": lambda x, to: torch.linspace(0, 1, 3, device=to),
    "moved": lambda x, to: x.to(to) + 1,
    "new_ones": lambda x, to: x.new_ones((2,), device=to),
    "ones_like": lambda x, to: torch.ones_like(x, device=to),
    "random": lambda x, to: torch.rand(3, device=to).ceil(),
    "random_like": lambda x, to: torch.rand_like(x, device=to).ceil(),
    "used": lambda x, to: torch.zeros_like(x, device=to) + torch.ones(3, device=to),
    "zeros": lambda x, to: torch.zeros(3, device=to),
    "zeros_like": lambda x, to: torch.zeros_like(x, device=to),
}


@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
@pytest.mark.parametrize("codegen", ["eager", slow("reference"), slow("inductor")])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("given", "wanted"), [("cpu", "npu"), ("npu", "cpu")])
def test_results_are_where_they_were_made(given: str, wanted: str, mode: str, codegen: str) -> None:
    def work(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"here": x + 1, **{name: create(x, wanted) for name, create in CREATES.items()}}

    run, x = compile_fn(work, codegen=codegen, mode=mode), torch.randn(3, device=given)
    for _ in range(3):
        made = run(x)
        for name, want in work(x).items():
            assert made[name].device == want.device, name
            assert torch.equal(made[name].cpu(), want.cpu()), name


@pytest.mark.parametrize("mode", MODES)
def test_values_of_the_host_stay_there(mode: str) -> None:
    """What is made of them is as well."""

    def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x + torch.zeros(3)) * torch.tensor([1.0, 2.0, 3.0]), y * 2.5 + torch.ones(3, device="npu")

    x, y = torch.randn(3), torch.randn(3, device="npu")
    run = compile_fn(work, mode=mode)
    for made, want in zip(run(x, y), work(x, y), strict=True):
        assert made.device == want.device
        torch.testing.assert_close(made.cpu(), want.cpu())


@pytest.mark.parametrize("mode", MODES)
def test_copies_between_devices(mode: str) -> None:
    """What is written decides where the result is."""

    def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.clone().copy_(y), y.clone().copy_(x), y + 1

    x, y = torch.randn(3), torch.randn(3, device="npu")
    run = compile_fn(work, mode=mode)
    for made, want in zip(run(x, y), work(x, y), strict=True):
        assert made.device == want.device
        assert torch.equal(made.cpu(), want.cpu())


@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
@pytest.mark.parametrize("mode", MODES)
def test_two_of_the_devices(mode: str) -> None:
    """What runs on the second is no part of a recording on the first."""

    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.to("npu:1") + 1, torch.zeros(3, device="npu:1") + x.to("npu:1"), x + 1

    run = compile_fn(work, mode=mode)
    for value in range(4):
        x = torch.full((3,), float(value), device="npu:0")
        for made, want in zip(run(x), work(x), strict=True):
            assert made.device == want.device
            assert torch.equal(made.cpu(), want.cpu())
