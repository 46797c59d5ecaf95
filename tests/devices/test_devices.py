"""A device is one file: `simulated_device.py` is one, and nothing is patched to use it."""

from __future__ import annotations

import ctypes
import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchair
from tests.support.simulated_device import CPU, SimulatedDevice
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.settings.settings import resolve_settings
from torchair.core.torch_private.fake.fake_tensors import make_fx
from torchair.devices import Device, cpu, get_device, install, installed
from torchair.devices.base import NoGraphs
from torchair.devices.cuda import DEVICE_TO_HOST, RELAXED, Cuda, Runtime


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
    assert get_device(CPU) is cpu.DEVICE


def test_an_installed_device_chooses_the_code_generator() -> None:
    class Plain(Device):
        def codegen(self, *, captures: bool) -> str:
            return "eager"

    x = torch.ones(2)
    gm = make_fx(lambda x: [x + 1])(x)
    settings = replace(resolve_settings(torchair.CompilerConfig()), waits=True)
    assert compile_fx(gm, [x], settings).report().program == "inductor"
    with installed(Plain("cpu")):
        assert compile_fx(gm, [x], settings).report().program == "eager"


def test_a_device_of_a_new_type_goes_again() -> None:
    unknown = get_device(torch.device("meta"))
    assert unknown.why_no_graphs() == "meta has no device graphs"
    with installed(Device("meta")) as known:
        assert get_device(torch.device("meta")) is known
        assert install(known) is known
    assert get_device(torch.device("meta")) is not known


def test_what_only_recordings_ask_is_a_fault_of_ours_elsewhere() -> None:
    with pytest.raises(NoGraphs, match="cpu"):
        cpu.DEVICE.new_stream(CPU)


def test_device_implements_whole_interface() -> None:
    """What `simulated_device.py` has to define is what a new device has to."""
    asked = {
        name
        for name, member in vars(Device).items()
        if callable(member) or isinstance(member, property)
        if "NoGraphs" in inspect.getsource(member.fget if isinstance(member, property) else member)
    }
    assert asked - {"vector_cores"} <= set(vars(SimulatedDevice))


class Recorded(Runtime):
    """The calls of CUDA, kept as a graph keeps them, on memory of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Callable[[], Any]] = []
        self.modes: list[int] = []
        self._calls |= {self.MODE: self._exchange, self.HOST: self._launch, "cudaMemcpyAsync": self._copy}

    def _exchange(self, mode: Any) -> int:
        self.modes.append(mode._obj.value)
        mode._obj.value = 0
        return 0

    def _copy(self, target: Any, source: Any, count: Any, kind: int, stream: Any) -> int:
        assert kind == DEVICE_TO_HOST
        self.tasks.append(lambda: ctypes.memmove(target, source, count.value))
        return 0

    def _launch(self, stream: Any, function: Any, data: Any) -> int:
        self.tasks.append(lambda: function(data))
        return 0

    def replay(self) -> None:
        """As CUDA does it, on a thread that Python knows nothing of."""
        thread = threading.Thread(target=lambda: [task() for task in self.tasks])
        thread.start()
        thread.join()


def test_a_recorded_call_of_the_host_has_the_values_of_each_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, runtime, plain = Cuda("cpu"), Recorded(), torch.empty
    current = SimpleNamespace(cuda_stream=7)
    module = SimpleNamespace(current_stream=lambda: current, synchronize=lambda: None)
    monkeypatch.setattr(cuda, "runtime", runtime, raising=False)
    monkeypatch.setattr(cuda, "module", module, raising=False)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory, **options: plain(*size, **options))
    seen: list[list[Any]] = []
    kept: list[torch.Tensor] = []

    def act(values: list[torch.Tensor]) -> None:
        seen.append([value.tolist() for value in values])
        kept.append(values[0])

    x = torch.zeros(2, 3)
    assert cuda.calls_host
    cuda.call_on_host([x, plain(0)], act)
    assert not seen, "nothing is called while a graph is recorded"
    assert runtime.modes == [RELAXED, 0] * 2, "pinned memory is taken as a capture allows it"
    for step in range(3):
        x.fill_(step)
        runtime.replay()
    assert seen == [[[[step] * 3] * 2, []] for step in range(3)]
    assert [values[0, 0].item() for values in kept] == [0, 1, 2], "each call has values of its own"
