"""Provide `torch_npu.profiler.profiler`, which analyzes hardware data after a run."""

from __future__ import annotations

from typing import Any

from torchair.core.log import logger

__all__ = ["analyse"]


def analyse(profiler_path: str, max_process_number: int | None = None, export_type: Any = None) -> None:
    """Do nothing: traces of the simulated device can be read without analysis."""
    logger.info("%s: analyse has no effect, because the traces can be read without analysis", profiler_path)
