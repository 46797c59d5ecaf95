"""Devices with graphs like CUDA's. `torch.npu` mirrors `torch.cuda`, so one class serves both."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from torchair.core.program import Call
from torchair.core.torch_private.device.memory import (
    capturing_getter,
    clear_blas_workspaces,
    end_pool_allocation,
    raw_stream_getter,
)
from torchair.devices.base import CaptureTarget, Device, Graph, PoolToken
from torchair.devices.input_copy_nodes import Copy

_collector_lock = threading.Lock()
_collector_states: list[bool] = []  # whether the collector was on; one entry per recording in progress


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection: freeing garbage that holds device memory would break a capture."""
    with _collector_lock:
        _collector_states.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _collector_lock:
            was_on = _collector_states.pop()
            # With concurrent recordings, the last to end restores what the first one found.
            if was_on and not _collector_states:
                gc.enable()


class GraphDevice(Device):
    """A device whose `torch.<type>` module has graphs, streams and events like `torch.cuda`. Modules are
    looked up at use, so a device that is not installed costs nothing.
    """

    has_graphs = True
    has_streams = True
    graph = ""
    """Name of the graph class in the module."""

    @cached_property
    def module(self) -> Any:
        """The module of the device: `torch.cuda`, `torch.npu`, …"""
        return torch.get_device_module(self.type)

    def why_no_graphs(self) -> str | None:
        if not hasattr(torch, self.type):
            return f"torch.{self.type} is not installed"
        if not self.module.is_available():
            return f"no {self.type} device is available"
        if not hasattr(self.module, self.graph):
            return f"torch.{self.type} has no {self.graph}"
        return None

    def has_fresh_random(self) -> bool:
        return hasattr(getattr(self.module, self.graph, None), "register_generator_state")

    def random_offset(self, device: torch.device) -> int:
        return self.module.default_generators[device.index or 0].get_offset()

    def vector_cores(self, device: torch.device) -> int:
        return self.module.get_device_limit(device.index or 0)["vector_core_num"]

    def new_pool(self) -> PoolToken:
        return self.module.graph_pool_handle()

    # Streams. The handle of the current stream is compared on every call, so this function must be fast.

    def stream_handle(self) -> Callable[[int], int]:
        quick = raw_stream_getter(self.type)
        if quick is not None:
            return quick
        return lambda index: getattr(self.module.current_stream(index), f"{self.type}_stream")

    def current_stream(self, device: torch.device) -> Any:
        return self.module.current_stream(device)

    def new_stream(self, device: torch.device) -> Any:
        return self.module.Stream(device=device)

    def order(self, before: Any, after: Any) -> None:
        event = self.module.Event()
        event.record(before)
        after.wait_event(event)

    @property
    def is_capturing(self) -> Callable[[], bool]:
        return self._is_capturing

    @cached_property
    def _is_capturing(self) -> Callable[[], bool]:
        return capturing_getter(self.type) or self.module.is_current_stream_capturing

    def synchronize(self, device: torch.device) -> None:
        self.module.synchronize(device)

    def reserved_bytes(self, device: torch.device) -> int:
        return self.module.memory_reserved(device)

    def empty_cache(self) -> None:
        self.module.empty_cache()

    def record(
        self, program: Call, args: list[Any], into: CaptureTarget, copies: Sequence[Copy] = ()
    ) -> tuple[Graph, list[Any]]:
        device = into.device
        graph = getattr(self.module, self.graph)(**({"keep_graph": True} if copies else {}))
        generator = self.module.default_generators[device.index or 0]
        random = generator.clone_state() if hasattr(generator, "clone_state") else None
        self.synchronize(device)
        with (
            self.module.device(device),
            self._own_workspaces(),
            self.module.stream(into.stream),
            gc_disabled(),
        ):
            # Begin and end of a capture may fail, too. The pool would then stay in recording state.
            try:
                graph.capture_begin(pool=into.pool, capture_error_mode=into.error_mode)
                for target, source in copies:
                    self.copy(target, source, self.stream_handle()(device.index or 0))
                outputs = program(args)
                graph.capture_end()
            except BaseException:
                self._abandon(graph, into)
                self._free_generator(generator, random, device)
                raise
            if copies:
                graph.instantiate()
        return graph, outputs

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: int) -> None:
        """Copy the bytes of one tensor into another on this stream, as a node of the graph that is being
        recorded.
        """
        raise AssertionError(f"{self.type} graphs cannot copy their own inputs")

    def _abandon(self, graph: Any, into: CaptureTarget) -> None:
        """End a failed capture without raising: the original error is the one to show."""
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        end_pool_allocation(self.type, into.device.index or 0, into.pool)
        with contextlib.suppress(RuntimeError):
            graph.reset()

    def _free_generator(self, generator: Any, saved: Any, device: torch.device) -> None:
        """Restore the saved state of the generator: a failed capture may leave it in capture state."""
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
        """Clear matmul workspaces. They belong to a stream and outlive a capture; other graphs must not share
        them.
        """
        clear_blas_workspaces(self.type)
        try:
            yield
        finally:
            clear_blas_workspaces(self.type)
