"""Suite `replay`: what capture mode itself costs per call, on any machine.

The model runs on the CPU behind a device whose graphs are empty: launching one does nothing, so what is left
is Dynamo, the comparing of inputs, the copying of plain ones and the handing out. Nothing is computed, so no
results are compared. `overhead` measures the same with real graphs on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import report
from benchmarks.models import BY_NAME
from benchmarks.options import Options
from benchmarks.overhead import BACKENDS, DIRECT, compiled_and_direct, reaching, show
from benchmarks.timing import Thunk, measure
from torchair.core.native import fast_replay
from torchair.devices import Device, installed

SUBJECTS = ("decoder32", "mlp", "one-op")
COLUMNS = ("dynamo", "capture", "frozen")  # of the suite `overhead`


class EmptyGraph:
    """Its launch is the cheapest call there is."""

    replay = reset = staticmethod(time.time)


class Hollow(Device):
    """The CPU as if it had graphs. Recording runs the program once; whole numbers are zeros then, because
    the buffers of inputs hold anything, and an index must be within bounds.
    """

    has_graphs = True

    def __init__(self) -> None:
        super().__init__("cpu")
        self._recording = False

    def why_no_graphs(self) -> str | None:
        return None

    def new_pool(self) -> tuple[int, int]:
        return (1, 0)

    def stream_handle(self) -> Callable[[int], int]:
        return int

    def current_stream(self, device: torch.device) -> Any: ...
    def new_stream(self, device: torch.device) -> Any: ...
    def order(self, before: Any, after: Any) -> None: ...
    def synchronize(self, device: torch.device) -> None: ...
    def empty_cache(self) -> None: ...

    def has_fresh_random(self) -> bool:
        return True

    def random_offset(self, device: torch.device) -> int:
        return 0

    def reserved_bytes(self, device: torch.device) -> int:
        return 0

    @property
    def is_capturing(self) -> Callable[[], bool]:
        # Outside a recording something in C that says no, as a device's own call does.
        return (lambda: True) if self._recording else torch.is_inference_mode_enabled

    def record(self, program: Any, args: Any, *rest: Any, **named: Any) -> Any:
        zeroed = [_zeros(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        self._recording = True
        try:
            return EmptyGraph(), program(zeroed)
        finally:
            self._recording = False


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_floating_point() else torch.zeros_like(tensor)


def run(options: Options) -> report.Suite:
    """Host time per call where a launch does nothing."""
    suite = report.Suite("replay", "cpu")
    fast_replay.load(fast_replay.built())
    with torch.no_grad(), installed(Hollow()):
        for name in filter(options.wants, SUBJECTS):
            report.console.print(f"replay: {name} ({BY_NAME[name].about})")
            suite.figures[name] = measure(
                columns(name, options), "cpu", options.rounds, options.sample_seconds
            )
    show(suite)
    return suite


def columns(name: str, options: Options) -> dict[str, Thunk]:
    """Each column through `torch.compile` and direct."""
    torch.compiler.reset()
    module, feed = BY_NAME[name].make("cpu"), BY_NAME[name].feed("cpu")
    args = reaching(module, feed)
    calls: dict[str, Thunk] = {}
    for column in COLUMNS:
        if not options.backends or column in options.backends:
            calls[column], calls[column + DIRECT] = compiled_and_direct(module, feed, args, BACKENDS[column])
    return calls
