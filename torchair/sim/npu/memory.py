"""Provide memory management: statistics in bytes, in blocks of 512 bytes."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch

from torchair.core.log import logger
from torchair.sim.native import shim
from torchair.sim.npu.device import index_of

_pools = count(1)
_fractions: dict[int, float] = {}
_given: dict[int, torch.Tensor] = {}
"""Memory allocated for other libraries, by address."""


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Return all statistics by name."""
    return OrderedDict(sorted(shim().memory_stats(index_of(device)).items()))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Return all statistics, nested by the parts of their names."""
    nested: dict[str, Any] = {}
    for name, number in memory_stats(device).items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = number
    return nested


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of all tensors."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak of `memory_allocated`."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """Return the bytes of tensors and cached blocks."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    """Return the peak of `memory_reserved`."""
    return memory_stats(device)["reserved_bytes.all.peak"]


memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Reset the peaks to the current values."""
    shim().reset_peak_memory_stats(index_of(device))


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Reset the counts of all allocations and frees."""
    shim().reset_accumulated_memory_stats(index_of(device))


def empty_cache() -> None:
    """Free cached blocks."""
    shim().empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return free and total bytes."""
    index = index_of(device)
    total = shim().total_memory(index)
    return total - memory_reserved(index), total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit the memory of a device to this fraction; allocations beyond it raise an error."""
    if isinstance(fraction, bool) or not isinstance(fraction, float | int):
        raise TypeError(f"expected a number from 0 to 1, got {fraction!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"expected a number from 0 to 1, got {fraction}")
    index = index_of(device)
    shim().set_memory_limit(index, max(1, int(fraction * shim().total_memory(index))))
    _fractions[index] = float(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """Return the fraction set by `set_per_process_memory_fraction`; the default is 1."""
    return _fractions.get(index_of(device), 1.0)


def device_memory_used(device: Any = None) -> int:
    """Return the used bytes of a device."""
    free, total = mem_get_info(device)
    return total - free


def memory_usage(device: Any = None) -> int:
    """Return the used memory of a device in percent."""
    free, total = mem_get_info(device)
    return 100 * (total - free) // total


def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
    """Allocate memory for another library and return its address, for `caching_allocator_delete`."""
    memory = torch.empty(size, dtype=torch.uint8, device=f"npu:{index_of(device)}")
    _given[memory.data_ptr()] = memory
    return memory.data_ptr()


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free memory of `caching_allocator_alloc`."""
    if _given.pop(mem_ptr, None) is None:
        raise RuntimeError(f"{mem_ptr:#x} is not an address from caching_allocator_alloc")


def get_allocator_backend() -> str:
    """Return the name of the allocator."""
    return "native"


def ipc_collect() -> None:
    """Do nothing: memory is not shared with other processes."""


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """Return every block of every device as a separate segment; cached blocks are one more segment."""
    segments = []
    for index in range(torch.accelerator.device_count()):
        blocks = shim().blocks_of(index)
        for address, size, requested, stream, pool in blocks:
            if mempool_id is None or pool == tuple(mempool_id):
                segments.append(_segment(index, address, size, size, requested, stream, pool))
        left = memory_reserved(index) - sum(size for _, size, *_ in blocks)
        if mempool_id is None and left > 0:
            segments.append(_segment(index, 0, left, 0, 0, 0, (0, 0)))
    return segments


def _segment(
    device: int, address: int, size: int, allocated: int, requested: int, stream: int, pool: tuple[int, int]
) -> dict[str, Any]:
    state = "active_allocated" if allocated else "inactive"
    block = {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}
    return {
        "device": device, "address": address, "total_size": size, "allocated_size": allocated,
        "active_size": allocated, "requested_size": requested, "stream": stream,
        "segment_type": "large" if size > 1 << 20 else "small", "segment_pool_id": pool,
        "is_expandable": False, "frames": [], "blocks": [block],
    }  # fmt: skip


def _record_memory_history(enabled: str | None = "all", *args: Any, **kwargs: Any) -> None:
    """Do nothing: snapshots contain only the current state."""
    if enabled not in (None, "state", "all"):
        raise ValueError(f"enabled must be None, 'state' or 'all', got {enabled!r}")
    logger.info(
        "memory history %s has no effect on the simulated device: a snapshot has the current state", enabled
    )


def _snapshot(device: Any = None) -> dict[str, Any]:
    """Return the snapshot in the format of the memory viewer of `torch.cuda`, without history."""
    return {
        "segments": memory_snapshot(), "device_traces": [[] for _ in range(torch.accelerator.device_count())],
        "allocator_settings": {}, "external_annotations": [],
    }  # fmt: skip


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Write the snapshot to a file."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def new_pool() -> tuple[int, int]:
    """Return an unused pool handle."""
    return 0, next(_pools)


class MemPool:
    """A separate memory pool: allocations in `use_mem_pool` come from it and return to it."""

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None:
            raise NotImplementedError(
                "MemPool does not accept an allocator: the simulated device uses host memory"
            )
        self.id = new_pool()
        self.allocator = None
        self._held: list[int] = []

    def use_count(self) -> int:
        """Return the number of owners, including graphs."""
        return 1 + sum(shim().pool_users(index, self.id) - 1 for index in self._held)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Return its blocks in use."""
        return memory_snapshot(self.id)

    def hold(self, index: int) -> None:
        """Keep memory of this device as long as the pool lives."""
        if index not in self._held:
            shim().hold_pool(index, self.id)
            self._held.append(index)

    def __del__(self) -> None:
        for index in getattr(self, "_held", ()):
            shim().let_go_of_pool(index, self.id)


@contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Context manager: tensors that this thread creates are allocated in a pool."""
    index = index_of(device)
    pool.hold(index)
    shim().push_pool(index, pool.id)
    try:
        yield
    finally:
        shim().pop_pool()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the statistics as a table."""
    stats = memory_stats(device)
    names = ("allocated_bytes", "reserved_bytes") + (() if abbreviated else ("requested_bytes", "allocation"))
    lines = [f"{'npu memory (simulated)':<24}{'current':>16}{'peak':>16}{'allocated':>18}{'freed':>18}"]
    for name in names:
        current, peak, taken, freed = (
            stats[f"{name}.all.{column}"] for column in ("current", "peak", "allocated", "freed")
        )
        lines.append(f"{name:<24}{current:>16,}{peak:>16,}{taken:>18,}{freed:>18,}")
    return "\n".join(lines)
