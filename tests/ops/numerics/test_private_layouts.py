"""Private layouts: on CPU and CUDA nothing changes; with the plug-in (simulated) each weight gets its own."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

import torchair
from torchair.ops.numerics import private_layouts


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls that a plug-in would get."""
    calls: list[tuple[Any, ...]] = []
    module = types.ModuleType("torch_npu")

    def cast(tensor: torch.Tensor, layout: int) -> torch.Tensor:
        calls.append((tuple(tensor.shape), layout))
        return tensor.clone()

    def pack(scale: torch.Tensor) -> torch.Tensor:
        calls.append(("packed", tuple(scale.shape)))
        return scale.clone()

    module.npu_format_cast, module.npu_trans_quant_param = cast, pack  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return calls


class Net(nn.Module):
    """A layer of each kind that the rules know, and some that they leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.half = nn.Conv2d(3, 5, 1).half()
        self.single = nn.Conv2d(3, 5, 1)
        self.grouped = nn.Conv2d(4, 4, 1, groups=2).half()
        self.norm = nn.LayerNorm(4)


def test_private_layout_without_plugin_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    before = model[0].weight.data_ptr()
    assert torchair.use_internal_format_weight(model) is None
    out = capsys.readouterr().out
    assert "[ERROR]" in out
    assert "torch_npu is not imported" in out
    assert model[0].weight.data_ptr() == before
    compiled = torch.compile(model, backend="npu", options={"codegen": "eager"})
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), model(x))


def test_each_kind_of_weight_gets_its_layout(plugin: list[tuple[Any, ...]]) -> None:
    with torch.device("meta"):  # a device that is not the host
        model = Net()
    torchair.use_internal_format_weight(model)
    assert plugin == [((8, 4), 29), ((5, 3, 1, 1), 4)]


def test_quantised_layers_of_the_plug_in(plugin: list[tuple[Any, ...]]) -> None:
    class QuantConv2d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.groups = 1
            self.weight = nn.Parameter(torch.zeros(2, 2, 1, 1, dtype=torch.int8, device="meta"), False)
            self.scale = nn.Parameter(torch.ones(2, device="meta"), False)

    QuantConv2d.__module__ = "torch_npu.contrib.module"
    torchair.use_internal_format_weight(QuantConv2d())
    assert plugin == [((2, 2, 1, 1), 4), ("packed", (2,))]


def test_a_weight_on_the_host_is_refused(plugin: list[tuple[Any, ...]]) -> None:
    with pytest.raises(RuntimeError, match=r"weight of 0 is on the CPU(?s:.*)model.to\('npu'\)"):
        torchair.use_internal_format_weight(nn.Sequential(nn.Linear(4, 4)))
    assert not plugin


def test_a_cast_keeps_the_tensor(device: torch.device) -> None:
    x = torch.randn(4, 4, device=device)
    assert torchair.npu_format_cast(x, 29) is x
    weight = torch.randint(-8, 8, (3, 64, 96), dtype=torch.int8, device=device)
    made = torchair.npu_format_cast_via_cpu(weight, 29)
    assert torch.equal(made, weight)
    assert made.data_ptr() != weight.data_ptr()
    assert made.stride() == weight.stride()


@pytest.mark.parametrize(("x", "layout"), [
    (torch.zeros(4, 4, dtype=torch.int8), 4), (torch.zeros(4, 4), 29), (torch.zeros(4, dtype=torch.int8), 29),
    (torch.zeros(4, 0, dtype=torch.int8), 29),
], ids=["layout", "dtype", "rank", "empty"])  # fmt: skip
def test_only_int8_matrices_are_cut_into_blocks(x: torch.Tensor, layout: int) -> None:
    with pytest.raises(RuntimeError, match="int8"):
        torchair.npu_format_cast_via_cpu(x, layout)


@pytest.mark.parametrize("value", ["soon", "2147483648", "1.5"])
def test_the_time_to_wait_is_a_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACL_STREAM_TIMEOUT", value)
    with pytest.raises(RuntimeError, match="ACL_STREAM_TIMEOUT must be a 32-bit integer"):
        torchair.npu_format_cast_via_cpu(torch.zeros(2, 2, dtype=torch.int8), 29)


class Stream:
    """Is done when it was asked often enough."""

    def __init__(self, asked: int) -> None:
        self.left = asked
        self.waited = False

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0

    def synchronize(self) -> None:
        self.waited, self.left = True, 0


@pytest.mark.parametrize(("limit", "asked", "outcome"), [
    ("-1", 10**9, "waits"), ("5000", 3, "done"), ("1", 10**9, "gives up"),
])  # fmt: skip
def test_the_stream_is_waited_for(
    limit: str, asked: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(asked)
    module = types.SimpleNamespace(current_stream=lambda device: stream)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setenv("ACL_STREAM_TIMEOUT", limit)
    if outcome == "gives up":
        with pytest.raises(RuntimeError, match="did not finish within 1 ms"):
            private_layouts._synchronize(torch.device("cuda"))
    else:
        private_layouts._synchronize(torch.device("cuda"))
    assert stream.waited is (outcome == "waits")
