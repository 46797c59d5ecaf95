"""The interface of a device. The base class describes a device without graphs, such as the CPU."""

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
    """Where a recording goes.

    Args:
        pool: token of the memory pool.
        stream: the stream to capture on.
        error_mode: which host calls break the capture: those of any thread (`global`), of this thread
            (`thread_local`), or none (`relaxed`).
        device: the device.
    """

    pool: PoolToken
    stream: Any
    error_mode: str
    device: torch.device


class Graph(Protocol):
    """A recorded graph that can be replayed."""

    def replay(self) -> None: ...
    def reset(self) -> None: ...


class Backing(Protocol):
    """A device that owns the memory of another device's tensors and runs its compiled programs."""

    @property
    def device(self) -> torch.device:
        """The backing device."""
        ...

    def show(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the backed device as one of the backing device, on the same memory."""
        ...

    def bound(self, program: Call, written: Sequence[int], device: torch.device) -> Call:
        """Return the program for tensors of the backed device. It writes the arguments with the indices
        `written`.
        """
        ...


class Device:
    """A type of device. Its file defines one object of it, `DEVICE`; subclasses override what differs."""

    has_graphs = False
    """Whether the device has graphs."""
    copies_inside = False
    """Whether a graph can copy its own inputs from addresses that are set before each launch."""
    calls_host = False
    """Whether a graph can call a function on the CPU at every replay."""
    has_streams = False
    """Whether ops can run concurrently on streams that events synchronize."""
    limits_cores = True
    """Whether a part of a graph can be limited to some of the cores."""
    traces = False
    """Whether a graph can write a trace of its tasks."""
    backing: Backing | None = None
    """The device that runs compiled programs; None if it is the device itself."""
    tuned: Mapping[str, Any] = {}
    """Options of Inductor for graphs with matrix-vector products. Empty: these products are not rewritten."""

    ways: Sequence[tuple[str, Mapping[str, Any]]] = (
        ("inductor", {}),
        ("inductor", {"max_autotune": True}),
        ("native", {}),
        ("eager", {}),
    )
    """Candidates of offline tuning: code generators with options of Inductor."""

    betters: Sequence[str] = ("inductor",)
    """Code generators for optimized programs, in the order in which they are tried."""

    def __init__(self, type: str) -> None:
        self.type = type
        self.shared_pools: dict[
            tuple[int, PoolToken], Any
        ] = {}  # pools of user tokens, see capture/recording/memory_pool.py

    def codegen(self, *, captures: bool) -> str:
        """Return the code generator of `auto` for the first call, in capture mode or graph mode. It is used
        for graphs that worker processes cannot compile.
        """
        return "inductor"

    def why_no_graphs(self) -> str | None:
        """Return why this device cannot record, or None if it can."""
        return f"{self.type} has no device graphs"

    def device_at(self, address: int) -> torch.device | None:
        """Return the device of this type that owns an address, or None."""
        return None

    def new_pool(self) -> PoolToken:
        """Return a new pool token."""
        return next(_tokens), 0

    # The following methods are only called for devices that can record.

    def has_fresh_random(self) -> bool:
        """Return whether a replay advances the random generator as the program would."""
        raise NoGraphs(self.type)

    def random_offset(self, device: torch.device) -> int:
        """Return the offset of the device's default generator."""
        raise NoGraphs(self.type)

    def vector_cores(self, device: torch.device) -> int:
        """Return the number of vector cores."""
        raise NoGraphs(self.type)

    # Streams. The handle of the current stream is compared on every call, so this function must be fast.

    def stream_handle(self) -> Callable[[int], int]:
        """Return a function from device index to the handle of the current stream."""
        raise NoGraphs(self.type)

    def current_stream(self, device: torch.device) -> Any:
        """Return the stream on which this thread launches."""
        raise NoGraphs(self.type)

    def new_stream(self, device: torch.device) -> Any:
        """Return a new stream to capture on."""
        raise NoGraphs(self.type)

    def order(self, before: Any, after: Any) -> None:
        """Make later work on stream `after` wait for earlier work on stream `before`."""
        raise NoGraphs(self.type)

    @property
    def is_capturing(self) -> Callable[[], bool]:
        """A function that returns whether this thread's stream is being captured."""
        raise NoGraphs(self.type)

    def synchronize(self, device: torch.device) -> None:
        """Wait for all work on the device."""
        raise NoGraphs(self.type)

    # Memory

    def reserved_bytes(self, device: torch.device) -> int:
        """Return the bytes that the caching allocator has reserved."""
        raise NoGraphs(self.type)

    def empty_cache(self) -> None:
        """Free unused cached memory: a capture cannot use memory that other pools have cached."""
        raise NoGraphs(self.type)

    # Graphs

    def record(
        self,
        program: Call,
        args: list[Any],
        into: CaptureTarget,
        copies: Sequence[Copy] = (),
    ) -> tuple[Graph, list[Any]]:
        """Record these copies and one run of the program with these arguments. Nothing is executed on the
        device.
        """
        raise NoGraphs(self.type)

    def call_on_host(self, tensors: Sequence[torch.Tensor], act: HostCall) -> None:
        """Make the graph that is being recorded call `act` on the CPU, with the values of the tensors at this
        point of the current stream. Only called if `calls_host`.
        """
        raise AssertionError(f"{self.type} graphs do not call functions on the CPU")

    def head(self, graph: Any, copies: Sequence[Copy], device: torch.device) -> InputCopyNodes:
        """Return the input-copy nodes of a recorded graph."""
        raise NoGraphs(self.type)

    def launcher(self, graph: Any) -> Callable[[], None]:
        """Return the fastest function to launch a graph."""
        return graph.replay

    def direct_launch(self, graph: Any, device: torch.device) -> DirectLaunch | None:
        """Return the runtime's launch function, for graphs without random numbers; None if there is none."""
        return None


class NoGraphs(AssertionError):
    """Internal error: a device without graphs was asked to record."""
