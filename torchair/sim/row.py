"""The simulated device as the rest of torchair asks for devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.core.program import Call
from torchair.devices import device_row
from torchair.devices.npu import Npu
from torchair.sim.load import shim
from torchair.sim.npu.graphs import is_current_stream_capturing


class OnBacking:
    """The device whose memory and kernels it has."""

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind) if kind == "cpu" else torch.device(kind, 0)

    def show(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor there."""
        return shim().show(tensor)

    def run(self, program: Call, args: list[Any], written: Sequence[int], device: torch.device) -> list[Any]:
        """What the program computes there."""
        made = shim().run_program(program, args, list(written), device.index or 0)
        args.clear()
        return made


class SimulatedNpu(Npu):
    """Code for it is generated for its backing device. Its graphs are recorded by running
    kernels on memory aside.
    """

    runs_while_recording = True

    def __init__(self, backing: str) -> None:
        super().__init__("npu")
        self.backing = OnBacking(backing)
        row = device_row(self.backing.device)
        self.betters = row.betters
        self.ways = row.ways

    def codegen(self, *, captures: bool) -> str:
        return "eager" if captures else "inductor"

    def stream_handle(self) -> Callable[[int], int]:
        return shim().current_stream

    @property
    def is_capturing(self) -> Callable[[], bool]:
        return is_current_stream_capturing

    def device_at(self, address: int) -> torch.device | None:
        index = shim().device_at(address)
        return None if index is None else torch.device("npu", index)
