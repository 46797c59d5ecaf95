"""Provide `torch_npu.profiler` with torch's profiler. Device times are times of the host."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.profiler
from torch.profiler import ProfilerAction, schedule

from torchair.core.log import logger

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "profile",
    "schedule",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
    "tensorboard_trace_handler",
]


class ProfilerActivity(enum.Enum):
    """Activities to profile."""

    CPU = "cpu"
    NPU = "npu"


class ProfilerLevel(enum.Enum):
    """Level of detail on the hardware; stored without effect."""

    Level_none = "none"
    Level0 = "0"
    Level1 = "1"
    Level2 = "2"


class AiCMetrics(enum.Enum):
    """Hardware counters of the cores; stored without effect."""

    AiCoreNone = "none"
    PipeUtilization = "pipe"
    ArithmeticUtilization = "arithmetic"
    Memory = "memory"
    MemoryAccess = "memory_access"
    MemoryL0 = "memory_l0"
    MemoryUB = "memory_ub"
    L2Cache = "l2"
    ResourceConflictRatio = "conflicts"


class ExportType(enum.Enum):
    """Output format of the hardware's data; stored without effect."""

    Text = "text"
    Db = "db"


class HostSystem(enum.Enum):
    """Host resources to sample; stored without effect."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"


@dataclass(frozen=True)
class _ExperimentalConfig:
    """Options for hardware counters, which the simulated device does not have."""

    profiler_level: ProfilerLevel = ProfilerLevel.Level0
    aic_metrics: AiCMetrics = AiCMetrics.AiCoreNone
    l2_cache: bool = False
    msprof_tx: bool = False
    data_simplification: bool = True
    record_op_args: bool = False
    op_attr: bool = False
    gc_detect_threshold: float | None = None
    export_type: ExportType | Sequence[ExportType] = ExportType.Text
    host_sys: Sequence[HostSystem] = ()
    mstx: bool = False
    mstx_domain_include: Sequence[str] = ()
    mstx_domain_exclude: Sequence[str] = ()
    sys_io: bool = False
    sys_interconnection: bool = False


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, analyse_flag: bool = True, async_mode: bool = False
) -> Callable[[torch.profiler.profile], None]:
    """Return a handler that writes each trace into a directory. The traces can be read without analysis."""
    return torch.profiler.tensorboard_trace_handler(dir_name, worker_name)


def supported_activities() -> set[ProfilerActivity]:
    """Return all activities."""
    return set(ProfilerActivity)


def supported_profiler_level() -> set[ProfilerLevel]:
    """Return all levels."""
    return set(ProfilerLevel)


def supported_ai_core_metrics() -> set[AiCMetrics]:
    """Return all metrics."""
    return set(AiCMetrics)


def supported_export_type() -> set[ExportType]:
    """Return all formats."""
    return set(ExportType)


class profile(torch.profiler.profile):
    """`torch.profiler.profile`; `ProfilerActivity.NPU` is the work of the host for the device."""

    def __init__(self, *, activities: Iterable[Any] | None = None, **options: Any) -> None:
        config = options.pop("experimental_config", None)
        if config is not None and not isinstance(config, _ExperimentalConfig):
            raise TypeError(
                f"experimental_config must be a torch_npu.profiler._ExperimentalConfig, got {config!r}"
            )
        if config is not None:
            logger.info("%s has no effect: the simulated device has no hardware counters", config)
        kinds = supported_activities() if activities is None else set(activities)
        unknown = [
            each for each in kinds if not isinstance(each, ProfilerActivity | torch.profiler.ProfilerActivity)
        ]
        if unknown:
            raise TypeError(f"activities must be from torch_npu.profiler.ProfilerActivity, got {unknown}")
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], **options)
