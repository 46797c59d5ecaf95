"""Figures in and out: machine facts, rich tables, JSON, geometric means."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torchair.core.text_table import table

# Bound to the stream of the start: a redirection around somebody's prints does not catch ours.
# Into a file or a log the tables go uncut; a terminal has its own width.
console = Console(highlight=False, file=sys.stdout, width=None if sys.stdout.isatty() else 120)


@dataclass
class Suite:
    """What one suite found: figures per model and column, and what went wrong."""

    name: str
    device: str
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"device": self.device, "seconds": self.figures, "failures": self.failures}


def machine(device: str) -> dict[str, Any]:
    """What the figures depend on."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts


def cpu_name() -> str:
    """The processor's name where the system tells, else its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def duration(seconds: float | None) -> str:
    """Three digits and the unit a reader expects."""
    if seconds is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def times(ratio: float | None) -> str:
    """How many times as fast as the base."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def ratio(figures: dict[str, float], base: str, column: str) -> float | None:
    if base not in figures or column not in figures:
        return None
    return figures[base] / figures[column]


def time_table(suite: Suite, titles: dict[str, str], caption: str = "") -> Table:
    """One row per model, one column per way to run it."""
    rows = [
        (model, *(duration(figures.get(name)) for name in titles)) for model, figures in suite.figures.items()
    ]
    title = f"{suite.name} on {suite.device}: time per call"
    return table(("model", *titles.values()), rows, figures=True, title=title, caption=caption or None)


def ratio_table(suite: Suite, titles: dict[str, str], base: str, columns: Sequence[str]) -> Table:
    """How many times as fast as `base` each column is, with geometric means."""
    rows = [
        (model, *(times(ratio(figures, base, name)) for name in columns))
        for model, figures in suite.figures.items()
    ]
    title = f"{suite.name} on {suite.device}: speed against {titles[base]} (higher is better)"
    shown = table(("model", *(titles[name] for name in columns)), rows, figures=True, title=title)
    means = []
    for name in columns:
        found = [ratio(figures, base, name) for figures in suite.figures.values()]
        known = [value for value in found if value is not None]
        means.append(times(geometric_mean(known)) if known else "-")
    shown.add_section()
    shown.add_row("geometric mean", *means)
    return shown


def print_failures(suites: Sequence[Suite]) -> None:
    for suite in suites:
        for failure in suite.failures:
            console.print(f"[red]FAILED[/red] {suite.name}: ", end="")
            console.print(failure, markup=False)


def write_json(path: Path, suites: Sequence[Suite]) -> None:
    """All figures in seconds, with the machine they were taken on."""
    device = "cuda" if any(suite.device == "cuda" for suite in suites) else "cpu"
    content = {"machine": machine(device), "suites": {suite.name: suite.as_json() for suite in suites}}
    path.write_text(json.dumps(content, indent=2) + "\n")
