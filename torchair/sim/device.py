"""Describe the simulated device to the rest of torchair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.core.program import Call
from torchair.devices import get_device
from torchair.devices.base import CaptureTarget, Graph
from torchair.devices.input_copy_nodes import Copy
from torchair.devices.npu import Npu
from torchair.sim.native import shim
from torchair.sim.npu.graphs import is_current_stream_capturing
from torchair.sim.python_device import PythonShim


class BackingDevice:
    """The device that owns the memory and runs the kernels."""

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind) if kind == "cpu" else torch.device(kind, 0)

    def show(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the backing device."""
        return shim().show(tensor)

    def bound(self, program: Call, written: Sequence[int], device: torch.device) -> Call:
        """Bind the program to the backing device."""
        memo, places, index = shim().Memo(), list(written), device.index or 0
        run_program = shim().run_program

        def run(args: list[Any]) -> list[Any]:
            made = run_program(program, args, places, index, memo)
            args.clear()
            return made

        return run


class SimulatedNpu(Npu):
    """The simulated device. Code for it is generated for its backing device."""

    calls_host = True  # graphs keep ops that print like any other op

    def __init__(self, backing: str) -> None:
        super().__init__("npu")
        self.backing = BackingDevice(backing)
        row = get_device(self.backing.device)
        self.betters = row.betters
        self.ways = row.ways

    def codegen(self, *, captures: bool) -> str:
        return "eager" if captures else "inductor"

    def record(
        self, program: Call, args: list[Any], into: CaptureTarget, copies: Sequence[Copy] = ()
    ) -> tuple[Graph, list[Any]]:
        graph, outputs = super().record(program, args, into, copies)
        graph.trust_addresses()  # type: ignore[attr-defined] - they are compared before every replay
        return graph, outputs

    def why_no_graphs(self) -> str | None:
        if isinstance(shim(), PythonShim):
            return f"cannot build the C++ part of the simulated npu device: {shim().why}"
        return super().why_no_graphs()

    def stream_handle(self) -> Callable[[int], int]:
        return shim().current_stream

    @property
    def is_capturing(self) -> Callable[[], bool]:
        return is_current_stream_capturing

    def device_at(self, address: int) -> torch.device | None:
        index = shim().device_at(address)
        return None if index is None else torch.device("npu", index)
