"""Collect the debugging options under `debug` and `dump_config` as plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchair.configs.binding import from_row


@dataclass(frozen=True)
class DebugOptions:
    """The files to write for one compilation and the runs of its program."""

    graph_dump: str | None = from_row("debug.graph_dump.type")
    graph_dump_path: str | None = from_row("debug.graph_dump.path")
    data_dump: str | None = from_row("debug.data_dump.type")
    data_dump_path: str | None = from_row("debug.data_dump.path")
    data_dump_filter: Callable[[Any], Any] | None = from_row("debug.data_dump.filter")
    summary: str | None = from_row("debug.fx_summary.type")
    summary_path: str | None = from_row("debug.fx_summary.path")
    skip_compile: bool = from_row("debug.fx_summary.skip_compile")
    enable_dump: bool = from_row("dump_config.enable_dump")
    dump_path: str = from_row("dump_config.dump_path")
    dump_mode: str = from_row("dump_config.dump_mode")
    dump_step: str = from_row("dump_config.dump_step")
    dump_layer: str = from_row("dump_config.dump_layer")
    dump_data: str = from_row("dump_config.dump_data")
    dump_stage: str = from_row("dump_config.data_dump_stage")
    dump_config_path: str | None = from_row("dump_config.dump_config_path")
    quant_dumpable: bool = from_row("dump_config.quant_dumpable")
