"""The known devices. Each device is one file here or elsewhere; `install` registers its object."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from torchair.devices import cpu, cuda, npu
from torchair.devices.base import Backing, CaptureTarget, Device, Graph, PoolToken
from torchair.devices.input_copy_nodes import Copy, GraphUpdateRejected, InputCopyNodes

__all__ = [
    "Backing",
    "CaptureTarget",
    "Copy",
    "Device",
    "Graph",
    "GraphUpdateRejected",
    "InputCopyNodes",
    "PoolToken",
    "device_at",
    "get_device",
    "install",
    "installed",
    "is_known",
]

_devices: dict[str, Device] = {module.DEVICE.type: module.DEVICE for module in (cpu, cuda, npu)}


def get_device(device: torch.device) -> Device:
    """Return the object for a device; an unknown device has no graphs."""
    return _devices.get(device.type) or Device(device.type)


def is_known(type: str) -> bool:
    """Return whether graphs can be compiled for this device type."""
    return type in _devices


def device_at(address: int) -> torch.device:
    """Return the device that owns an address: the first that claims it, else the CPU."""
    found = (device.device_at(address) for device in _devices.values())
    return next((device for device in found if device is not None), torch.device("cpu"))


def install(device: Device) -> Device | None:
    """Use this object for its device type from now on. Return the previous one."""
    before = _devices.get(device.type)
    _devices[device.type] = device
    return before


@contextlib.contextmanager
def installed(device: Device) -> Iterator[Device]:
    """Use this object for its device type within the block."""
    before = install(device)
    try:
        yield device
    finally:
        if before is None:
            del _devices[device.type]
        else:
            install(before)
