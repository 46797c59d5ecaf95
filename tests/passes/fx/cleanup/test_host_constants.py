"""Constants that a device graph makes on the CPU are folded, or made on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from tests.capture.base.test_host_ops import DEVICE, traced
from torchair.capture.base.host_ops import host_op_reasons
from torchair.passes.fx.cleanup import host_constants
from torchair.passes.fx.cleanup.host_constants import fill_with_numbers, fold, move


def moved(gm: fx.GraphModule) -> dict[str, str]:
    """Which device each call is on, behind the move."""
    move(gm, DEVICE)
    gm.graph.lint()
    return {
        str(node.target): node.meta["val"].device.type
        for node in gm.graph.nodes
        if node.op == "call_function"
    }


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[torch.arange(3)],
        lambda x: x + torch.arange(4).unsqueeze(0).to("meta"),
        lambda x: x[(torch.arange(4) * 2 % 4).flip(0)],
        lambda x: x * torch.full((4,), 0.5).to("meta"),
    ],
)
def test_constants_are_made_on_the_device(function: Callable[..., Any]) -> None:
    gm = traced(function)
    assert host_op_reasons(gm)
    assert set(moved(gm).values()) == {"meta"}
    assert not host_op_reasons(gm)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2, torch.arange(3)),  # returned
        lambda x: x * torch.arange(4.0).exp().to("meta"),  # the last bit may differ
        lambda x: x * torch.rand(4).to("meta"),
    ],
)
def test_what_would_change_stays(function: Callable[..., Any]) -> None:
    gm = traced(function)
    assert "cpu" in moved(gm).values()


def test_what_the_device_may_refuse_stays() -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        whole = torch.arange(16).view(4, 4)
        return x + (whole @ whole).to("meta")

    assert moved(traced(product))["aten.mm.default"] == "cpu"


def folded(function: Callable[..., Any]) -> tuple[list[str], dict[str, torch.Tensor]]:
    """The calls that are left, and the new constants."""
    gm = traced(function)
    fold(gm)
    gm.graph.lint()
    gm.recompile()
    calls = [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]
    new = {name: value for name, value in gm.named_buffers() if name.startswith("_folded_")}
    return calls, new


def scale(x: torch.Tensor) -> torch.Tensor:
    """As many models write it: a number that the CPU computes."""
    return x / torch.sqrt(torch.tensor(8.0) * 3)


def test_numbers_that_the_cpu_computes_are_constants() -> None:
    calls, constants = folded(scale)
    assert calls == ["aten.div.Tensor"]
    (constant,) = constants.values()
    assert type(constant) is torch.Tensor, "no fake"
    assert torch.equal(constant, torch.sqrt(torch.tensor(8.0) * 3))
    gm = traced(scale)
    fold(gm)
    move(gm, DEVICE)
    # A division by a number of the CPU is not computed as one by a number on the device is.
    assert [node.meta["val"].device.type for node in gm.graph.nodes if node.op == "get_attr"] == ["cpu"]
    assert not host_op_reasons(gm)


def test_numbers_that_are_no_argument_of_a_kernel_are_on_the_device() -> None:
    """`where` would copy them from the CPU, which cannot be recorded."""
    gm = traced(lambda x: torch.where(x > 0, torch.tensor(2.0), x) + torch.where(x > 1, torch.tensor(3.0), x))
    fold(gm)
    move(gm, DEVICE)
    constants = [node.meta["val"].device.type for node in gm.graph.nodes if node.op == "get_attr"]
    assert constants == ["meta", "meta"]
    assert not host_op_reasons(gm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_masked_fill_takes_a_number(device: str, dtype: torch.dtype) -> None:
    """The device would be asked for it."""

    def fill(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).masked_fill(x > 0, torch.scalar_tensor(5.3, dtype=dtype, device=device))

    gm = traced(fill)
    fold(gm)
    assert fill_with_numbers(gm) == 1
    gm.recompile()
    (call,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.masked_fill.Scalar)
    assert call.args[2] == torch.tensor(5.3, dtype=dtype).item()


def test_copies_of_constants_are_constants_of_the_device() -> None:
    def positions(x: torch.Tensor) -> torch.Tensor:
        return x + torch.log(torch.arange(1, 5).float()).view(1, 4).to("meta")

    calls, constants = folded(positions)
    assert calls == ["aten.add.Tensor"]
    assert [value.device.type for value in constants.values()] == ["meta"]


def test_results_of_several_outputs() -> None:
    calls, constants = folded(lambda x: x * torch.arange(8.0).view(2, 4).max(1).values.to("meta").sum())
    assert "aten.max.dim" not in calls
    assert len(constants) == 1


def test_who_may_hand_a_constant_on_gets_a_copy() -> None:
    calls, constants = folded(lambda x: (x * 2, torch.arange(3.0).exp()))
    assert calls == ["aten.mul.Tensor", "aten.lift_fresh_copy.default"]
    assert len(constants) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.rand(4).to("meta"),
        lambda x: x * (torch.zeros(4) + x.shape[0]).to("meta") * torch.rand(()),
    ],
)
def test_random_numbers_are_drawn_in_every_call(function: Callable[..., Any]) -> None:
    calls, _ = folded(function)
    assert "aten.rand.default" in calls


def test_large_results_are_computed_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_constants, "MAX_BYTES", 8)
    calls, constants = folded(lambda x: x * torch.arange(4.0).exp().to("meta"))
    assert "aten.exp.default" in calls
    assert not constants
