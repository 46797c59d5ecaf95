"""`torch.npu.utils`: questions about numbers that overflow, and about what is installed; hints about dumps
and devices that fail, which only the hardware can take.
"""

from __future__ import annotations

from typing import Any

import torch

from torchair.core.log import logger
from torchair.sim.npu.device import index_of, synchronize
from torchair.sim.npu.streams import StreamContext

__all__ = [
    "check_uce_in_memory",
    "clear_npu_overflow_flag",
    "finalize_dump",
    "get_cann_version",
    "get_npu_overflow_flag",
    "init_dump",
    "is_support_inf_nan",
    "npu_check_overflow",
    "restart_device",
    "set_dump",
    "stop_device",
    "stream",
    "stress_detect",
    "synchronize",
]

stream = StreamContext


def is_support_inf_nan() -> bool:
    """Do numbers that overflow become infinite? They do, as on the host."""
    return True


def npu_check_overflow(grad: Any) -> bool:
    """Is a number of it infinite, or none?"""
    if isinstance(grad, torch.Tensor):
        return not bool(grad.isfinite().all())
    return not torch.tensor(float(grad)).isfinite().item()


def get_npu_overflow_flag() -> bool:
    """Of hardware whose numbers have no infinities: there is none."""
    return False


def clear_npu_overflow_flag() -> None:
    """There is none."""


def get_cann_version(module: str = "CANN") -> str:
    """Of the vendor's software, which is not there."""
    return ""


def _told(what: str) -> None:
    logger.info("%s is for the hardware: the simulated device does nothing", what)


def init_dump() -> None:
    """A hint for the hardware: what kernels were given can be written."""
    _told("init_dump")


def set_dump(cfg_file: str) -> None:
    """A hint for the hardware: what is written is said in this file."""
    _told(f"set_dump of {cfg_file}")


def finalize_dump() -> None:
    """A hint for the hardware: no more of it."""
    _told("finalize_dump")


def stress_detect(mode: int = 0) -> int:
    """Is the hardware sound? Nothing was found."""
    return 0


def check_uce_in_memory(device_id: int) -> int:
    """Has a device's memory failed? It has not."""
    index_of(device_id)
    return 0


def stop_device(device_id: int) -> int:
    """A hint for the hardware: what a device was given is dropped. All is done here."""
    index_of(device_id)
    _told(f"stop_device of {device_id}")
    return 0


def restart_device(device_id: int, rebuild_all_resources: bool = False) -> None:
    """A hint for the hardware: the device is used again."""
    index_of(device_id)
    _told(f"restart_device of {device_id}")
