"""Write the device graphs of recordings as task traces, and check them for deadlocks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchair.capture import Observer
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import first_line
from torchair.core.fingerprint.atomic_files import FILE_MODE
from torchair.debug.dumps.files import make_folder, now
from torchair.debug.traces.deadlock import check_trace
from torchair.devices import get_device


@dataclass(frozen=True)
class TraceFiles(Observer):
    """Write the trace of every recording of one FX graph; with `checks`, search it for deadlocks."""

    name: str
    device: torch.device
    folder: Path
    degradations: Diagnostics
    checks: bool
    _ids: Iterator[int] = field(default_factory=itertools.count, init=False)

    def recorded(self, graph: Any) -> None:
        """Write and check the graph of a recording. A failure only warns."""
        try:
            path = make_folder(self.folder) / self._file_name()
            graph.debug_dump(str(path))
            path.chmod(FILE_MODE)
            if self.checks:
                check_trace(path, get_device(self.device).vector_cores(self.device))
        except Exception as error:
            missing = "cannot write the trace of a recording" + (
                " or check it for deadlocks" if self.checks else ""
            )
            self.degradations.add(f"{missing}: {type(error).__name__}: {first_line(error)}")

    def _file_name(self) -> str:
        place = f"rank_{self.device.index or 0}_pid_{os.getpid()}"
        return f"{self.name}_id_{next(self._ids)}_{place}_ts_{now()}.json"
