"""Devices: how many, which one, what they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchair.sim.native import shim

NAME = "Ascend910B (simulated)"
CUBE_CORES, VECTOR_CORES = 24, 48
"""Of an Ascend 910B."""
kinds = {"npu"}
"""What devices of this kind are called: `transfer_to_npu` adds another."""


def index_of(device: Any = None, *, optional: bool = True) -> int:
    """The number of a device given as number, text or `torch.device`; of the current one for None."""
    if device is None and optional:
        return current_device()
    if isinstance(device, bool) or not isinstance(device, int | str | torch.device):
        raise TypeError(f"expected a device, its number or its name, got {device!r}")
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
    """Is there such a device?"""
    return device_count() > 0


def is_initialized() -> bool:
    """Is it in use?"""
    return True


def init() -> None:
    """There is nothing to start."""


def device_count() -> int:
    """How many devices there seem to be."""
    return shim().device_count()


def current_device() -> int:
    """The number of this thread's device."""
    return shim().current_device()


def set_device(device: Any) -> None:
    """Work of this thread goes there from now on. A negative number changes nothing."""
    if isinstance(device, int) and device < 0:
        return
    shim().set_device(index_of(device))


class device:
    """Within this block, work goes to another device. None or a negative number: to the same."""

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
    """The device of a tensor; of a tensor elsewhere, the current one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "npu" else -1)


def synchronize(device: Any = None) -> None:
    """Wait for all work of a device."""
    shim().synchronize(index_of(device))


@dataclass(frozen=True)
class Properties:
    """What is known of a device."""

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
        """What Inductor asks a device of `torch.cuda` where there is no CUDA (`transfer_to_npu`)."""
        return self.name


def get_device_properties(device: Any = None) -> Properties:
    """What is known of a device; the cores are those of an Ascend 910B."""
    total = shim().total_memory(index_of(device))
    return Properties(NAME, 0, 0, total, CUBE_CORES, CUBE_CORES, VECTOR_CORES, 192 << 20)


def get_device_name(device: Any = None) -> str:
    """Its name."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> None:
    """The hardware has none, and says so."""
    index_of(device)


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Can one device read another's memory?"""
    return index_of(device) != index_of(peer_device)


def utilization(device: Any = None) -> int:
    """How busy it is, in percent: work is done when it is given."""
    index_of(device)
    return 0
