"""A device is one file: `simulated.py` is one, and nothing is patched to use it."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch

import torchair
from tests.capture.simulated import CPU, SimulatedDevice
from torchair.backend.compile import compile_fx
from torchair.backend.settings import settle
from torchair.core.torch_private.fake import make_fx
from torchair.devices import Device, cpu, device_row, install, installed
from torchair.devices.base import NoGraphs


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_an_installed_device_records(mode: str) -> None:
    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = mode, "eager"
    run = torch.compile(
        lambda x: x.sin() * 2, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False
    )
    simulated = SimulatedDevice()
    with installed(simulated), torch.no_grad():
        for _ in range(4):
            x = torch.randn(3)
            torch.testing.assert_close(run(x), x.sin() * 2)
    assert (simulated.captures, simulated.replays) == (1, 3)
    assert device_row(CPU) is cpu.DEVICE


def test_an_installed_device_chooses_the_code_generator() -> None:
    class Plain(Device):
        def codegen(self, *, captures: bool) -> str:
            return "eager"

    x = torch.ones(2)
    gm = make_fx(lambda x: [x + 1])(x)
    settings = replace(settle(torchair.CompilerConfig()), waits=True)
    assert compile_fx(gm, [x], settings).report().program == "inductor"
    with installed(Plain("cpu")):
        assert compile_fx(gm, [x], settings).report().program == "eager"


def test_a_device_of_a_new_type_goes_again() -> None:
    unknown = device_row(torch.device("meta"))
    assert unknown.why_no_graphs() == "meta has no device graphs"
    with installed(Device("meta")) as known:
        assert device_row(torch.device("meta")) is known
        assert install(known) is known
    assert device_row(torch.device("meta")) is not known


def test_what_only_recordings_ask_is_a_fault_of_ours_elsewhere() -> None:
    with pytest.raises(NoGraphs, match="cpu"):
        cpu.DEVICE.new_stream(CPU)


def test_a_device_says_everything_that_is_asked_of_one() -> None:
    """What `simulated.py` has to define is what a new device has to."""
    asked = {
        name
        for name, member in vars(Device).items()
        if callable(member) or isinstance(member, property)
        if "NoGraphs" in inspect.getsource(member.fget if isinstance(member, property) else member)
    }
    assert asked - {"vector_cores"} <= set(vars(SimulatedDevice))
