"""Memory pools, launch order and static input memory of recordings.

Graphs of one pool share their workspace: memory that one freed during its capture, the next one uses. That is
safe while they run one after another. `LaunchOrder` ensures it: a launch on another stream than the last one
first waits for that stream. Outputs are kept alive by their recording, so no later graph gets their memory.
An earlier graph may have used it as workspace, so only the first graph of a pool returns outputs in the
pool's memory. The others copy theirs out of the pool (`output_buffers.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from torchair.capture.base.output_buffers import grow_size
from torchair.devices import CaptureTarget, Device, Graph, PoolToken


class LaunchOrder:
    """The order of launches on one device that never run concurrently, and the stream they are captured on.
    Blocks of a pool, and workspaces of libraries, are shared only between captures on one stream.
    """

    def __init__(self, row: Device, device: torch.device) -> None:
        self.lock = threading.RLock()  # a program may call another graph of the same pool
        self.index = device.index or 0
        self.handle_of = row.stream_handle()
        self.last_handle: int | None = None
        self._last: Any = None
        self._row = row
        self._device = device

    @cached_property
    def stream(self) -> Any:
        """The stream for captures."""
        return self._row.new_stream(self._device)

    def take(self) -> None:
        """Mark this thread as the next to launch. Its stream waits for all earlier launches and their
        readers.
        """
        handle = self.handle_of(self.index)
        if handle == self.last_handle:
            return
        current = self._row.current_stream(self._device)
        if self._last is not None:
            self._row.order(self._last, current)
        self.last_handle, self._last = handle, current


class Pool:
    """One allocator pool of one device."""

    def __init__(
        self, row: Device, device: torch.device, turns: LaunchOrder, token: PoolToken | None = None
    ) -> None:
        self.token = token or row.new_pool()
        self.is_fresh = token is None  # no known graph has workspace in it
        self.turns = turns
        self._row = row
        self._device = device
        self._anchor: Graph | None = None

    def open(self) -> None:
        """Prepare the first capture: record a tiny graph that keeps the pool alive when other graphs are
        freed.
        """
        if self._anchor is not None:
            return
        self._row.empty_cache()
        scrap = torch.zeros(1, device=self._device)
        into = CaptureTarget(self.token, self.turns.stream, "thread_local", self._device)
        self._anchor, _ = self._row.record(lambda args: [args[0].zero_()], [scrap], into)


def pool_for(row: Device, device: torch.device, token: PoolToken | None, turns: LaunchOrder | None) -> Pool:
    """Return a new pool, or for a user's token the one that all graphs with this token share. Graphs of pools
    with the same `turns` never run concurrently.
    """
    if token is None:
        return Pool(row, device, turns or LaunchOrder(row, device))
    # Never removed: the allocator refuses a token whose graphs are freed while one of their outputs is still
    # held.
    key = (device.index or 0, token)
    known = row.shared_pools.get(key)
    return row.shared_pools.setdefault(key, known or Pool(row, device, LaunchOrder(row, device), token))


class StaticInputArena:
    """Static input memory: one block per input, which all recordings of a graph share.

    Inputs are copied in by each replay or right before it, so only the largest shape needs memory. If the
    largest call is known (`room`, in bytes), a block is created for it. A block that is too small is
    replaced; recordings that use the old block keep it.
    """

    def __init__(self, device: torch.device, room: Mapping[int, int] | None = None) -> None:
        self._device = device
        self._room = room or {}
        self._blocks: dict[int, torch.Tensor] = {}

    def like(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return a buffer for input `index` with the sizes and strides of this tensor."""
        need = extent(tensor)
        block = self._blocks.get(index)
        with torch.inference_mode(False):
            if block is None or block.numel() < need:
                size = grow_size(max(need, self._room.get(index, 0)), 0 if block is None else block.numel())
                block = self._blocks[index] = torch.empty(size, dtype=torch.uint8, device=self._device)
            buffer = torch.empty(0, dtype=tensor.dtype, device=self._device)
            return buffer.set_(block.untyped_storage(), 0, tensor.size(), tensor.stride())

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that new recordings use."""
        return sum(block.numel() for block in self._blocks.values())


def extent(tensor: torch.Tensor) -> int:
    """Return the bytes from the first to the last element."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
