"""Store core limits like the hardware. The kernels here use the cores of the host."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from torchair.sim.npu.device import CUBE_CORES, VECTOR_CORES, device_count

_of_devices: dict[int, list[int]] = {}
_of_streams: dict[tuple[int, int], list[int]] = {}
_level: list[int] = [0]


def _names(cube: int, vector: int) -> dict[str, int]:
    return {"cube_core_num": cube, "vector_core_num": vector}


def _changed(now: list[int], cube: int, vector: int) -> list[int]:
    return [cube if cube >= 0 else now[0], vector if vector >= 0 else now[1]]


def _checked(device: Any) -> int:
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(f"expected a device index, got {device!r}")
    assert 0 <= device < device_count(), f"there is no npu:{device}"
    return device


def set_device_limit(device: int, cube_num: int = -1, vector_num: int = -1) -> None:
    """Limit the cores of all kernels of this process on a device; -1 keeps a limit."""
    device = _checked(device)
    _of_devices[device] = _changed(_of_devices.get(device, [CUBE_CORES, VECTOR_CORES]), cube_num, vector_num)


def get_device_limit(device: int) -> dict[str, int]:
    """Return the core limits of this process on a device."""
    return _names(*_of_devices.get(_checked(device), (CUBE_CORES, VECTOR_CORES)))


def _key(stream: Any) -> tuple[int, int]:
    assert isinstance(stream, torch.Stream), f"expected a stream, got {stream!r}"
    return stream.device_index, stream.stream_id


def set_stream_limit(stream: Any, cube_num: int = -1, vector_num: int = -1) -> None:
    """Limit the cores of kernels on one stream; -1 keeps a limit."""
    key = _key(stream)
    now = list(get_stream_limit(stream).values())
    _of_streams[key] = _changed(now, cube_num, vector_num)


def get_stream_limit(stream: Any) -> dict[str, int]:
    """Return the core limits of a stream."""
    key = _key(stream)
    found = _of_streams.get(key)
    return get_device_limit(key[0]) if found is None else _names(*found)


def reset_stream_limit(stream: Any) -> None:
    """Reset the limits of a stream to those of its device."""
    _of_streams.pop(_key(stream), None)


def set_deterministic_level(level: int) -> None:
    """Set the level of determinism: with 0, results may depend on the order of additions."""
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= 3:
        raise ValueError(f"expected a level from 0 to 3, got {level!r}")
    is_on = torch.are_deterministic_algorithms_enabled()
    if is_on != (level > 0):
        warnings.warn(
            f"torch.use_deterministic_algorithms is {is_on}; level {level} sets it to {level > 0}",
            stacklevel=2,
        )
        torch.use_deterministic_algorithms(level > 0)
    _level[0] = level


def get_deterministic_level() -> int:
    """Return the level of determinism."""
    return _level[0]
