"""What a device offers to capture: the one table of rows, and the few calls made on a row.

`torch.npu` mirrors `torch.cuda`, so one class serves both; their modules are looked up when a row is used,
so a row for a device that is not installed costs nothing. The CPU has no graphs: its recordings are the
bound program.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch

from torchair.capture.head import Copy, Head, Runtime
from torchair.core.program import Call
from torchair.core.torch_private.memory import (
    capturing_getter,
    clear_blas_workspaces,
    end_pool_allocation,
    raw_stream_getter,
)

PoolToken = tuple[int, int]

_tokens = itertools.count(1)
_collection_lock = threading.Lock()
_uncollected: list[bool] = []  # was the collector on? One entry per recording under way


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Garbage that holds device memory must not be freed while a graph is recorded: that would break it."""
    with _collection_lock:
        _uncollected.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _collection_lock:
            was_on = _uncollected.pop()
            # Of threads that record at the same time, the last to end has what the first one found.
            if was_on and not _uncollected:
                gc.enable()


class Graph(Protocol):
    """One recorded, replayable graph."""

    def replay(self) -> None: ...
    def reset(self) -> None: ...


class Device:
    """One row: device type, name of its graph class, whether replays draw fresh random numbers, and whether
    a graph can write its tasks as a trace.
    """

    def __init__(
        self, type: str, graph: str | None = None, *, random: bool = False, traces: bool = False
    ) -> None:
        self.type = type
        self.traces = traces
        self.graph = graph
        self.shared_pools: dict[tuple[int, PoolToken], Any] = {}  # of users' tokens, see pool.py
        self._random = random

    @cached_property
    def module(self) -> Any:
        """`torch.cuda`, `torch.npu`, …"""
        return torch.get_device_module(self.type)

    def why_no_graphs(self) -> str | None:
        """None when this device can record; else what is missing."""
        if self.graph is None:
            return f"{self.type} has no device graphs"
        if not hasattr(torch, self.type):
            return f"torch.{self.type} is not installed"
        if not self.module.is_available():
            return f"no {self.type} device is available"
        if not hasattr(self.module, self.graph):
            return f"torch.{self.type} has no {self.graph}"
        return None

    def has_fresh_random(self) -> bool:
        """Does a replay advance the random generator, as running the program would?"""
        return self._random or hasattr(
            getattr(self.module, self.graph or "", None), "register_generator_state"
        )

    def random_offset(self, device: torch.device) -> int:
        """How far the device's default generator has advanced."""
        return self.module.default_generators[device.index or 0].get_offset()

    def vector_cores(self, device: torch.device) -> int:
        """How many vector cores kernels share."""
        return self.module.get_device_limit(device.index or 0)["vector_core_num"]

    def new_pool(self) -> PoolToken:
        """A fresh pool token."""
        return (next(_tokens), 0) if self.graph is None else self.module.graph_pool_handle()

    # Streams. The handle of the current stream is compared on every call, so it must be quick to get.

    def stream_handle(self) -> Callable[[int], int]:
        """A function from device index to the handle of the current stream."""
        quick = raw_stream_getter(self.type)
        if quick is not None:
            return quick
        return lambda index: getattr(self.module.current_stream(index), f"{self.type}_stream")

    def current_stream(self, device: torch.device) -> Any:
        """The stream this thread launches on."""
        return self.module.current_stream(device)

    def new_stream(self, device: torch.device) -> Any:
        """A side stream to capture on."""
        return self.module.Stream(device=device)

    def order(self, before: Any, after: Any) -> None:
        """Work launched on `after` from now on waits for what was launched on `before` until now."""
        event = self.module.Event()
        event.record(before)
        after.wait_event(event)

    @cached_property
    def is_capturing(self) -> Callable[[], bool]:
        """Is somebody recording this thread's stream already?"""
        return capturing_getter(self.type) or self.module.is_current_stream_capturing

    @cached_property
    def runtime(self) -> Runtime | None:
        """What it takes to copy inputs inside a graph; None where that cannot be done."""
        runtime = Runtime() if self.type == "cuda" else None
        return runtime if runtime is not None and runtime.is_complete() else None

    def head(self, graph: Any, copies: Sequence[Copy], device: torch.device) -> Head:
        """The copies that a graph was recorded with."""
        assert self.runtime is not None, "it recorded them"
        return self.runtime.head(graph, copies, lambda: self.module.device(device))

    def launcher(self, graph: Any) -> Callable[[], None]:
        """The quickest way to launch a graph."""
        return graph.replay if self.runtime is None else self.runtime.launcher(graph)

    def synchronize(self, device: torch.device) -> None:
        """Wait for all work on the device."""
        self.module.synchronize(device)

    def reserved_bytes(self, device: torch.device) -> int:
        """Bytes the caching allocator has taken from the device."""
        return self.module.memory_reserved(device)

    def empty_cache(self) -> None:
        """Give unused cached memory back to the device: a capture cannot use what other pools have cached."""
        self.module.empty_cache()

    def record(
        self,
        program: Call,
        args: list[Any],
        pool: PoolToken,
        stream: Any,
        error_mode: str,
        device: torch.device,
        copies: Sequence[Copy] = (),
    ) -> tuple[Graph, list[Any]]:
        """Record these copies and one run of the program on these arguments. Nothing is executed on the
        device.
        """
        graph = getattr(self.module, self.graph or "")(**({"keep_graph": True} if copies else {}))
        generator = self.module.default_generators[device.index or 0]
        random = generator.clone_state() if hasattr(generator, "clone_state") else None
        self.synchronize(device)
        with (
            self.module.device(device),
            self._own_workspaces(),
            self.module.stream(stream),
            without_collection(),
        ):
            # To begin and to end may fail, too, and would leave the pool as one that is recorded into.
            try:
                graph.capture_begin(pool=pool, capture_error_mode=error_mode)
                for target, source in copies:
                    assert self.runtime is not None, "without it nothing is copied inside a graph"
                    self.runtime.copy(target, source, self.stream_handle()(device.index or 0))
                outputs = program(args)
                graph.capture_end()
            except BaseException:
                self._abandon(graph, pool, device)
                self._free_generator(generator, random, device)
                raise
            if copies:
                graph.instantiate()
        return graph, outputs

    def _abandon(self, graph: Any, pool: PoolToken, device: torch.device) -> None:
        """End a capture that broke off; the error worth showing is the one that broke it."""
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        end_pool_allocation(self.type, device.index or 0, pool)
        with contextlib.suppress(RuntimeError):
            graph.reset()

    def _free_generator(self, generator: Any, saved: Any, device: torch.device) -> None:
        """A capture that broke off may leave the generator captured for good: give it its saved state."""
        if saved is None:
            return
        try:
            offset = generator.get_offset()
            torch.empty(1, device=device).uniform_()
            generator.set_offset(offset)
        except RuntimeError:
            generator.graphsafe_set_state(saved)

    @contextlib.contextmanager
    def _own_workspaces(self) -> Iterator[None]:
        """Matmul workspaces hang on a stream and outlive a capture; other graphs must not share them."""
        clear_blas_workspaces(self.type)
        try:
            yield
        finally:
            clear_blas_workspaces(self.type)


DEVICES: dict[str, Device] = {
    row.type: row
    for row in (
        Device("cpu"),
        Device("cuda", "CUDAGraph", random=True),
        Device("npu", "NPUGraph", traces=True),
    )
}


def device_row(device: torch.device) -> Device:
    """The row of a device; an unknown device has no graphs."""
    return DEVICES.get(device.type) or Device(device.type)
