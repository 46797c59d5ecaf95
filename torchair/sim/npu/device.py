"""Provide device management: count, selection, properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchair.sim.native import shim

NAME = "Ascend910B (simulated)"
CUBE_CORES, VECTOR_CORES = 24, 48
"""Number of cores of an Ascend 910B."""
kinds = {"npu"}
"""Type names of these devices; `transfer_to_npu` adds another."""


def index_of(device: Any = None, *, optional: bool = True) -> int:
    """Return the index of a device given as number, text or `torch.device`; None is the current one."""
    if device is None and optional:
        return current_device()
    if isinstance(device, bool) or not isinstance(device, int | str | torch.device):
        raise TypeError(f"expected a torch.device, a device index or a device name, got {device!r}")
    if isinstance(device, int):
        index: int | None = device
    else:
        device = torch.device(device)
        if device.type not in kinds:
            raise ValueError(f"expected an npu device, got {device}")
        index = device.index
    if index is None:
        return current_device()
    if not 0 <= index < device_count():
        raise RuntimeError(
            f"invalid device ordinal npu:{index}: there are {device_count()} simulated devices"
        )
    return index


def is_available() -> bool:
    """Return whether there is such a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return whether the device is initialized."""
    return True


def init() -> None:
    """Do nothing: the device needs no initialization."""


def device_count() -> int:
    """Return the number of simulated devices."""
    return shim().device_count()


def current_device() -> int:
    """Return the index of the current device of this thread."""
    return shim().current_device()


def set_device(device: Any) -> None:
    """Select the current device of this thread. A negative index changes nothing."""
    if isinstance(device, int) and device < 0:
        return
    shim().set_device(index_of(device))


class device:
    """Context manager that selects a device. None or a negative index changes nothing."""

    def __init__(self, device: Any) -> None:
        stays = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if stays else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        if self.idx >= 0:
            shim().set_device(self.idx)

    def __exit__(self, *error: object) -> None:
        shim().set_device(self.prev_idx)


class device_of(device):
    """Context manager that selects the device of an npu tensor; other tensors change nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "npu" else -1)


def synchronize(device: Any = None) -> None:
    """Wait for all work of a device."""
    shim().synchronize(index_of(device))


@dataclass(frozen=True)
class Properties:
    """Properties of a device."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    cube_core_num: int
    vector_core_num: int
    L2_cache_size: int

    @property
    def gcnArchName(self) -> str:
        """Property that Inductor reads from `torch.cuda` if there is no CUDA (`transfer_to_npu`)."""
        return self.name


def get_device_properties(device: Any = None) -> Properties:
    """Return the properties of a device; the core counts are those of an Ascend 910B."""
    total = shim().total_memory(index_of(device))
    return Properties(NAME, 0, 0, total, CUBE_CORES, CUBE_CORES, VECTOR_CORES, 192 << 20)


def get_device_name(device: Any = None) -> str:
    """Return the name of a device."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> None:
    """Return None, as on the hardware."""
    index_of(device)


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Return whether one device can read the memory of another."""
    return index_of(device) != index_of(peer_device)


def utilization(device: Any = None) -> int:
    """Return the utilization in percent: 0, because work runs synchronously."""
    index_of(device)
    return 0
