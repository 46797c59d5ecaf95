"""Which ops need the host, and what is copied to the device so that fewer do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from torchair.capture.base.host_ops import copy_first, host_op_reasons
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv, make_fx

DEVICE = torch.device("meta")


def traced(function: Callable[..., Any], *devices: str) -> fx.GraphModule:
    """A graph of 4x4 tensors on these devices; no device is needed for it."""
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        args = [torch.empty(4, 4, device=device) for device in devices or ("meta",)]
        return make_fx(function, tracing_mode="real", record_stack_traces=True)(*args)


def reasons(gm: fx.GraphModule) -> dict[str, str]:
    return {str(node.target): why for node, why in host_op_reasons(gm).items()}


@pytest.mark.parametrize(
    ("function", "op", "reason"),
    [
        (lambda x: torch.nonzero(x), "aten.nonzero.default", "size that depends on data"),
        (lambda x: x + x.sum().item(), "aten._local_scalar_dense.default", "on the CPU"),
        (lambda x: x.cpu() + 1, "aten._to_copy.default", "CPU"),
        (lambda x: x[x > 0], "aten.index.Tensor", "size that depends on data"),
        (lambda x: x.index_put((x > 0,), x.sum()), "aten.index_put.default", "mask"),
    ],
)
def test_what_needs_the_host(function: Callable[..., Any], op: str, reason: str) -> None:
    assert reason in reasons(traced(function))[op]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[torch.arange(3, device="meta")],
        lambda x: (
            x[[2, 0]] if x.device.type == "cpu" else x.index_select(0, torch.ones(2, device="meta").long())
        ),
        lambda x: x.index_put((torch.zeros(2, dtype=torch.long, device="meta"),), x[:2]),
        lambda x: x.scatter(0, x.long(), x).cumsum(0).sort().values,
    ],
)
def test_what_needs_none(function: Callable[..., Any]) -> None:
    assert reasons(traced(function)) == {}


def test_sizes_that_data_decided_need_the_host_once() -> None:
    gm = traced(lambda x: torch.nonzero(x).float().sin().sum(0))
    assert list(reasons(gm)) == ["aten.nonzero.default"]


def test_a_number_of_the_host_is_copied_before_it_is_read() -> None:
    gm = traced(lambda x, y: x * y.sum() + x, "meta", "cpu")
    copy_first(gm, DEVICE)
    assert [str(node.target) for node in host_op_reasons(gm)] == ["aten.sum.default", "aten._to_copy.default"]


def test_a_random_number_of_the_cpu_is_drawn_in_every_call() -> None:
    assert list(reasons(traced(lambda x: x * torch.rand(())))) == ["aten.rand.default", "aten.mul.Tensor"]


def test_only_ops_of_atens_get_copies() -> None:
    lib = torch.library.Library("airtest_host", "FRAGMENT")
    lib.define("seeded(Tensor seed, Tensor x) -> Tensor")
    lib.impl("seeded", lambda seed, x: torch.empty_like(x), "Meta")
    lib.impl("seeded", lambda seed, x: torch.empty_like(x), "CPU")
    gm = traced(lambda x, y: torch.ops.airtest_host.seeded(y.sum(), x), "meta", "cpu")
    assert copy_first(gm, DEVICE) == 0
    assert "reads a tensor on the CPU" in reasons(gm)["airtest_host.seeded.default"]
