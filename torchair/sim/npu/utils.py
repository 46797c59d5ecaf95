"""Provide `torch.npu.utils`: overflow checks and versions, and functions for dumps and device failures, which
have an effect only on the hardware.
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
    """Return True: overflow gives infinities, as on the host."""
    return True


def npu_check_overflow(grad: Any) -> bool:
    """Return whether the tensor contains infinities or NaNs."""
    if isinstance(grad, torch.Tensor):
        return not bool(grad.isfinite().all())
    return not torch.tensor(float(grad)).isfinite().item()


def get_npu_overflow_flag() -> bool:
    """Return False: only hardware without infinities has an overflow flag."""
    return False


def clear_npu_overflow_flag() -> None:
    """Do nothing: there is no overflow flag."""


def get_cann_version(module: str = "CANN") -> str:
    """Return the version of the vendor's software, which is not installed."""
    return ""


def _log_ignored(what: str) -> None:
    logger.info("%s has no effect on the simulated device", what)


def init_dump() -> None:
    """Do nothing: on the hardware, this enables dumps of kernel inputs."""
    _log_ignored("init_dump")


def set_dump(cfg_file: str) -> None:
    """Do nothing: on the hardware, the file configures the dumps."""
    _log_ignored(f"set_dump of {cfg_file}")


def finalize_dump() -> None:
    """Do nothing: on the hardware, this ends the dumps."""
    _log_ignored("finalize_dump")


def stress_detect(mode: int = 0) -> int:
    """Return 0: no hardware defect was found."""
    return 0


def check_uce_in_memory(device_id: int) -> int:
    """Return 0: no memory error was found."""
    index_of(device_id)
    return 0


def stop_device(device_id: int) -> int:
    """Do nothing: on the hardware, this drops pending work. Here no work is pending."""
    index_of(device_id)
    _log_ignored(f"stop_device of {device_id}")
    return 0


def restart_device(device_id: int, rebuild_all_resources: bool = False) -> None:
    """Do nothing: on the hardware, this restarts a stopped device."""
    index_of(device_id)
    _log_ignored(f"restart_device of {device_id}")
