"""`torch_npu.profiler.profiler`: tables are made of what the hardware wrote, after the run."""

from __future__ import annotations

from typing import Any

from torchair.core.log import logger

__all__ = ["analyse"]


def analyse(profiler_path: str, max_process_number: int | None = None, export_type: Any = None) -> None:
    """A hint for the hardware: traces of the simulated device can be read as they are."""
    logger.info("%s: analyse is for the hardware, traces can be read as they are", profiler_path)
