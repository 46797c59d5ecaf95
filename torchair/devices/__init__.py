"""The devices that are known. A device is one file here, or anywhere: `install` takes its object."""

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
    """What is known of a device; an unknown one has no graphs."""
    return _devices.get(device.type) or Device(device.type)


def is_known(type: str) -> bool:
    """Is this a type of devices that graphs are compiled for?"""
    return type in _devices


def device_at(address: int) -> torch.device:
    """Whose memory lies at an address: that of a device which says it is its own, else the host's."""
    found = (device.device_at(address) for device in _devices.values())
    return next((device for device in found if device is not None), torch.device("cpu"))


def install(device: Device) -> Device | None:
    """Graphs that are compiled from now on for this type run on this device; the one that was there."""
    before = _devices.get(device.type)
    _devices[device.type] = device
    return before


@contextlib.contextmanager
def installed(device: Device) -> Iterator[Device]:
    """`install`, and back behind the block."""
    before = install(device)
    try:
        yield device
    finally:
        if before is None:
            del _devices[device.type]
        else:
            install(before)
