"""What a device offers: the one class that all of them are. What is written here is a device without graphs,
as the CPU is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torchair.core.native.fast_replay import DirectLaunch
from torchair.core.program import Call
from torchair.devices.input_copy_nodes import Copy, InputCopyNodes

PoolToken = tuple[int, int]
HostCall = Callable[[list[torch.Tensor]], None]

_tokens = itertools.count(1)


@dataclass(frozen=True)
class CaptureTarget:
    """Where a recording goes. `error_mode` says which host calls break it: those of any thread (`global`), of
    this one (`thread_local`), or none (`relaxed`).
    """

    pool: PoolToken
    stream: Any
    error_mode: str
    device: torch.device


class Graph(Protocol):
    """One recorded, replayable graph."""

    def replay(self) -> None: ...
    def reset(self) -> None: ...


class Backing(Protocol):
    """Another device, on whose memory tensors of this one lie: it runs compiled programs."""

    @property
    def device(self) -> torch.device:
        """Which one."""
        ...

    def show(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of this device as one of the other, on the same memory."""
        ...

    def bound(self, program: Call, written: Sequence[int], device: torch.device) -> Call:
        """The program for tensors of this device; it writes the arguments at `written`."""
        ...


class Device:
    """A kind of device. A file has one object of it, `DEVICE`; what differs is a subclass."""

    has_graphs = False
    """Is there such a thing as a device graph?"""
    copies_inside = False
    """Can a graph copy its inputs itself, and be told where from?"""
    calls_host = False
    """Can a graph call a function of the host at every replay?"""
    has_streams = False
    """Can ops run beside each other, in the order that events give them?"""
    limits_cores = True
    """Can a part of a graph be kept to some of the cores?"""
    traces = False
    """Can a graph write its tasks as a trace?"""
    backing: Backing | None = None
    """Who runs compiled programs; none: the device itself."""
    tuned: Mapping[str, Any] = {}
    """Options of Inductor for graphs that multiply a matrix and a vector; none: products stay products."""

    ways: Sequence[tuple[str, Mapping[str, Any]]] = (
        ("inductor", {}),
        ("inductor", {"max_autotune": True}),
        ("native", {}),
        ("eager", {}),
    )
    """Code generators, with options of Inductor, that offline tuning tries out."""

    betters: Sequence[str] = ("inductor",)
    """Code generators that are asked, one after the other, for a better program than the eager one."""

    def __init__(self, type: str) -> None:
        self.type = type
        self.shared_pools: dict[
            tuple[int, PoolToken], Any
        ] = {}  # of users' tokens, see capture/recording/memory_pool.py

    def codegen(self, *, captures: bool) -> str:
        """The code generator of graphs that `auto` compiles in their first call, in capture mode or graph
        mode: those that no other process can compile.
        """
        return "inductor"

    def why_no_graphs(self) -> str | None:
        """None when this device can record; else what is missing."""
        return f"{self.type} has no device graphs"

    def device_at(self, address: int) -> torch.device | None:
        """The device of this kind whose memory lies at an address; None where it is not of this kind."""
        return None

    def new_pool(self) -> PoolToken:
        """A fresh pool token."""
        return next(_tokens), 0

    # What follows is asked of devices that can record, alone.

    def has_fresh_random(self) -> bool:
        """Does a replay advance the random generator, as running the program would?"""
        raise NoGraphs(self.type)

    def random_offset(self, device: torch.device) -> int:
        """How far the device's default generator has advanced."""
        raise NoGraphs(self.type)

    def vector_cores(self, device: torch.device) -> int:
        """How many vector cores kernels share."""
        raise NoGraphs(self.type)

    # Streams. The handle of the current stream is compared on every call, so it must be quick to get.

    def stream_handle(self) -> Callable[[int], int]:
        """A function from device index to the handle of the current stream."""
        raise NoGraphs(self.type)

    def current_stream(self, device: torch.device) -> Any:
        """The stream this thread launches on."""
        raise NoGraphs(self.type)

    def new_stream(self, device: torch.device) -> Any:
        """A side stream to capture on."""
        raise NoGraphs(self.type)

    def order(self, before: Any, after: Any) -> None:
        """Work launched on `after` from now on waits for what was launched on `before` until now."""
        raise NoGraphs(self.type)

    @property
    def is_capturing(self) -> Callable[[], bool]:
        """A function that says whether somebody records this thread's stream already."""
        raise NoGraphs(self.type)

    def synchronize(self, device: torch.device) -> None:
        """Wait for all work on the device."""
        raise NoGraphs(self.type)

    # Memory

    def reserved_bytes(self, device: torch.device) -> int:
        """Bytes the caching allocator has taken from the device."""
        raise NoGraphs(self.type)

    def empty_cache(self) -> None:
        """Give unused cached memory back to the device: a capture cannot use what other pools have cached."""
        raise NoGraphs(self.type)

    # Graphs

    def record(
        self,
        program: Call,
        args: list[Any],
        into: CaptureTarget,
        copies: Sequence[Copy] = (),
    ) -> tuple[Graph, list[Any]]:
        """Record these copies and one run of the program on these arguments. Nothing is executed on the
        device.
        """
        raise NoGraphs(self.type)

    def call_on_host(self, tensors: Sequence[torch.Tensor], act: HostCall) -> None:
        """The graph that is being recorded calls `act` with the values that the tensors have at this point of
        the current stream, on the host. Asked where `calls_host`.
        """
        raise AssertionError(f"{self.type} graphs do not call the host")

    def head(self, graph: Any, copies: Sequence[Copy], device: torch.device) -> InputCopyNodes:
        """The copies that a graph was recorded with."""
        raise NoGraphs(self.type)

    def launcher(self, graph: Any) -> Callable[[], None]:
        """The quickest way to launch a graph."""
        return graph.replay

    def direct_launch(self, graph: Any, device: torch.device) -> DirectLaunch | None:
        """A still quicker one, of the runtime's, that leaves random generators alone."""
        return None


class NoGraphs(AssertionError):
    """Asked of a device that cannot record: a fault of ours."""
