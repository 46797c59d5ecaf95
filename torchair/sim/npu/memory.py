"""Memory of the devices: counted to the byte, in pieces of 512."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from torchair.sim.load import shim
from torchair.sim.npu.device import index_of

_fractions: dict[int, float] = {}
_given: dict[int, torch.Tensor] = {}
"""Memory of other libraries, by its address."""


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """All that is counted, by name."""
    return OrderedDict(sorted(shim().memory_stats(index_of(device)).items()))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The same, with a dictionary for each part of a name."""
    nested: dict[str, Any] = {}
    for name, number in memory_stats(device).items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = number
    return nested


def memory_allocated(device: Any = None) -> int:
    """Bytes of tensors."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """Bytes of tensors, when there were most."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes of tensors, and of what they left behind."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    """The same, when it was most."""
    return memory_stats(device)["reserved_bytes.all.peak"]


memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Peaks are counted from now on."""
    shim().reset_peak_memory_stats(index_of(device))


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """What was allocated and freed in all is counted from now on."""
    shim().reset_accumulated_memory_stats(index_of(device))


def empty_cache() -> None:
    """Give back what tensors left behind."""
    shim().empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free bytes, and all there are."""
    index = index_of(device)
    total = shim().total_memory(index)
    return total - memory_reserved(index), total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """No more than so much of a device's memory: who asks for more gets an error."""
    if isinstance(fraction, bool) or not isinstance(fraction, float | int):
        raise TypeError(f"expected a number from 0 to 1, got {fraction!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"expected a number from 0 to 1, got {fraction}")
    index = index_of(device)
    shim().set_memory_limit(index, max(1, int(fraction * shim().total_memory(index))))
    _fractions[index] = float(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """What `set_per_process_memory_fraction` was given, 1 if nothing."""
    return _fractions.get(index_of(device), 1.0)


def device_memory_used(device: Any = None) -> int:
    """Bytes of a device that are taken."""
    free, total = mem_get_info(device)
    return total - free


def memory_usage(device: Any = None) -> int:
    """The same, in percent."""
    free, total = mem_get_info(device)
    return 100 * (total - free) // total


def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
    """Memory for another library: its address, to be given back with `caching_allocator_delete`."""
    memory = torch.empty(size, dtype=torch.uint8, device=f"npu:{index_of(device)}")
    _given[memory.data_ptr()] = memory
    return memory.data_ptr()


def caching_allocator_delete(mem_ptr: int) -> None:
    """Take it back."""
    if _given.pop(mem_ptr, None) is None:
        raise RuntimeError(f"{mem_ptr:#x} is no address of caching_allocator_alloc")


def get_allocator_backend() -> str:
    """The device's own."""
    return "native"


def ipc_collect() -> None:
    """Give back memory that other processes have let go: none of this is ever shared with others."""


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table for people."""
    stats = memory_stats(device)
    names = ("allocated_bytes", "reserved_bytes") + (() if abbreviated else ("requested_bytes", "allocation"))
    lines = [f"{'npu memory (simulated)':<24}{'current':>16}{'peak':>16}{'allocated':>18}{'freed':>18}"]
    for name in names:
        current, peak, taken, freed = (
            stats[f"{name}.all.{column}"] for column in ("current", "peak", "allocated", "freed")
        )
        lines.append(f"{name:<24}{current:>16,}{peak:>16,}{taken:>18,}{freed:>18,}")
    return "\n".join(lines)
