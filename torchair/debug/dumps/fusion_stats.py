"""Write `./fusion_result.json`: how often passes and fusions matched in each graph, and changed it.

    {"session_and_graph_id_0_3": {
        "graph_fusion": {"bmm_transpose": {"match_times": "2", "effect_times": "1"}}, "ub_fusion": {}}}

The file has all graphs of the process, which is one session. Code generators do not report which kernels they
fuse, so `ub_fusion` is empty.
"""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import first_line
from torchair.core.log import logger
from torchair.debug.dumps.files import write_text

FILE = "fusion_result.json"
SESSION = 0
# The values of `ge_config.export_compile_stat`.
NEVER, AT_EXIT = "0", "1"


class Counts(Protocol):
    """Number of matches and of changes of a pass."""

    matches: int
    effects: int


class FusionResults:
    """Collected statistics of all graphs."""

    def __init__(self) -> None:
        self._graphs: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._waits = False

    def add(self, name: str, found: Mapping[str, Counts], when: str, degradations: Diagnostics) -> None:
        """Add a compiled graph, `graph_<number>`, and write the file now, at exit, or never."""
        if when == NEVER:
            return
        with self._lock:
            self._graphs[f"session_and_graph_id_{SESSION}_{name.removeprefix('graph_')}"] = {
                "graph_fusion": {
                    title: {"match_times": str(counts.matches), "effect_times": str(counts.effects)}
                    for title, counts in found.items()
                },
                "ub_fusion": {},
            }
            if when == AT_EXIT:
                if not self._waits:
                    atexit.register(self._write_at_exit)
                self._waits = True
                return
            try:
                self._write()
            except (OSError, RuntimeError) as error:
                degradations.add(f"cannot write {FILE}: {type(error).__name__}: {first_line(error)}")

    def _write(self) -> None:
        write_text(Path(FILE), json.dumps(self._graphs, indent=2) + "\n")

    def _write_at_exit(self) -> None:
        try:
            self._write()
        except (OSError, RuntimeError) as error:
            logger.error("cannot write %s: %s", FILE, first_line(error))


FUSION_RESULTS = FusionResults()
