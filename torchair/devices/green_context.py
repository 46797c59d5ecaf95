"""Streams of a CUDA device whose kernels run on some of its SMs only. The driver calls this green contexts.
Such a stream is used like any other, also inside recorded graphs.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

import torch

from torchair.core.errors import NotPossible
from torchair.core.log import logger

SMS = 1  # CU_DEV_RESOURCE_TYPE_SM
OF_THE_DEVICE = 1  # CU_GREEN_CTX_DEFAULT_STREAM
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
CALLS = (
    "cuDeviceGet",
    "cuDeviceGetDevResource",
    "cuDevSmResourceSplitByCount",
    "cuDevResourceGenerateDesc",
    "cuGreenCtxCreate",
    "cuGreenCtxStreamCreate",
)
_streams: dict[tuple[int, int, int], Any] = {}
_given: dict[tuple[int, int], int] = {}  # device, SMs -> number of streams on parts of this size
_making = threading.Lock()


class _Resource(ctypes.Structure):
    """CUdevResource."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("internal", ctypes.c_ubyte * 92),
        ("count", ctypes.c_uint),
        ("at_least", ctypes.c_uint),
        ("multiple", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 36),
    ]


@cache
def _driver() -> Any:
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return found if all(hasattr(found, name) for name in CALLS) else None


@cache
def is_possible() -> bool:
    """Return whether this driver can limit a stream to some of the SMs of its first device."""
    try:
        return _driver() is not None and _all(0).count > 0
    except NotPossible:
        return False


def stream_beside(stream: Any, wanted: int) -> Any:
    """Return a stream that replaces another one for work on at most `wanted` SMs. If that is no limit, return
    the stream itself. The streams are not synchronized. Streams use different SMs while there are enough.
    """
    device = stream.device.index
    sms = _sm_count(device, wanted)
    if sms >= _all(device).count:
        return stream
    key = (device, stream.cuda_stream, sms)
    with _making:
        if key not in _streams:
            place = _given.get((device, sms), 0)
            _given[device, sms] = place + 1
            contexts = _contexts(device, sms)
            made = ctypes.c_void_p()
            priority = ctypes.c_int(stream.priority)
            _call("cuGreenCtxStreamCreate", ctypes.byref(made), contexts[place % len(contexts)],
                  NON_BLOCKING, priority)  # fmt: skip
            _streams[key] = torch.cuda.ExternalStream(made.value, device)
        return _streams[key]


@cache
def _sm_count(device: int, wanted: int) -> int:
    """Return the SM count of a part for this limit: parts have a minimum size and grow in steps."""
    whole = _all(device)
    if wanted >= whole.count:
        return whole.count
    count = max(whole.at_least, wanted // whole.multiple * whole.multiple)
    if count > wanted:
        logger.warning(
            "limit_core_num: a limit of %s SMs is below the minimum of this device, using %s SMs",
            wanted,
            count,
        )
    return count


@cache
def _all(device: int) -> _Resource:
    found = _Resource()
    _call("cuDeviceGetDevResource", _handle(device), ctypes.byref(found), SMS)
    return found


@cache
def _contexts(device: int, sms: int) -> list[Any]:
    """Split the device into parts with this number of SMs. They live as long as the process."""
    count = ctypes.c_uint(_all(device).count // sms)
    parts, rest = (_Resource * count.value)(), _Resource()
    _call("cuDevSmResourceSplitByCount", parts, ctypes.byref(count), ctypes.byref(_all(device)),
          ctypes.byref(rest), 0, ctypes.c_uint(sms))  # fmt: skip
    made: list[Any] = []
    for part in parts[: count.value]:
        description, context = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(part), 1)
        _call("cuGreenCtxCreate", ctypes.byref(context), description, _handle(device), OF_THE_DEVICE)
        made.append(context)
    return made


def _handle(device: int) -> ctypes.c_int:
    found = ctypes.c_int()
    _call("cuDeviceGet", ctypes.byref(found), device)
    return found


def _call(name: str, *args: Any) -> None:
    status = getattr(_driver(), name)(*args)
    if status:
        raise NotPossible(f"{name} of the CUDA driver failed with status {status}")
