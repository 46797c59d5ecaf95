"""`python -m benchmarks.demo`: three models in both modes, static and dynamic, in one table.

For each: equal to eager, graph breaks, fall-backs, time to ready, speed against eager and `torch.compile`.
Ends with 0 only if every result is equal.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

import torchair
from benchmarks.columns import BY_NAME as COLUMN_BY_NAME
from benchmarks.columns import own_copy
from benchmarks.equality import snapshot, why_unequal
from benchmarks.models import BY_NAME, Inputs, Model
from benchmarks.report import console, duration, machine, ratio, times
from benchmarks.timing import Thunk, measure

MODELS = ("llama-prefill", "bert", "cnn")
MODES = ("graph", "capture")
# Explain, then stock and both modes, static and dynamic.
STEPS = 1 + 2 * (1 + len(MODES))
ROUNDS = 7


@dataclass
class Line:
    """One line of the table. `problem` says what differs from eager."""

    model: str
    mode: str
    shapes: str
    breaks: str
    fallbacks: str
    ready: float = 0.0
    against_eager: float | None = None
    against_stock: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Subject:
    """One model made ready: inputs of two shapes, and what eager gives for them."""

    model: Model
    module: nn.Module
    feeds: tuple[Inputs, Inputs]
    wants: tuple[list[Tensor], list[Tensor]]

    @classmethod
    def of(cls, model: Model, device: str) -> Subject:
        module = model.make(device)
        feeds = (model.feed(device), model.feed(device, second=True))
        return cls(model, module, feeds, tuple(snapshot(module(**feed)) for feed in feeds))


def demonstrate(model: Model, device: str, step: Callable[[str], None]) -> list[Line]:
    """Both modes, static and dynamic, each timed beside eager and stock `torch.compile` of the same kind."""
    step(f"{model.name}: explain")
    subject = Subject.of(model, device)
    breaks, fallbacks = explained(subject)
    lines = []
    for shapes in ("static", "dynamic"):
        step(f"{model.name}: torch.compile, {shapes}")
        calls: dict[str, Thunk] = {"eager": partial(subject.module, **subject.feeds[0])}
        stock, _, trouble = prepare("stock", subject, shapes)
        if trouble is None:
            calls["stock"] = stock
        made = []
        for mode in MODES:
            step(f"{model.name}: {mode} mode, {shapes}")
            call, seconds, problem = prepare(mode, subject, shapes)
            if problem is None:
                calls[mode] = call
            made.append(Line(model.name, mode, shapes, breaks, fallbacks, seconds, problem=problem))
        fill_speeds(made, calls, device)
        lines += made
    return lines


def explained(subject: Subject) -> tuple[str, str]:
    """How many graph breaks, and which ops graph mode carries through. What `explain` prints is dropped."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            report = torchair.explain(own_copy(subject.module), **subject.feeds[0])
    except Exception as error:
        return "?", f"explain failed: {type(error).__name__}"
    names = sorted({str(reason.op) for reason in report.fallbacks})
    return str(len(report.graph_breaks)), ", ".join(names) or "none"


def prepare(column: str, subject: Subject, shapes: str) -> tuple[Thunk, float, str | None]:
    """The compiled call, seconds to a first result, and what differs from eager (dynamic: at both shapes)."""
    (feed, other), (want, want_other) = subject.feeds, subject.wants
    tolerance = subject.model.tolerance
    start = time.perf_counter()
    call = COLUMN_BY_NAME[column].make(subject.module, shapes == "dynamic")
    thunk = partial(call, **feed)
    try:
        got = snapshot(thunk())
        seconds = time.perf_counter() - start
        problem = why_unequal(got, want, tolerance)
        if problem is None and shapes == "dynamic":
            problem = why_unequal(snapshot(call(**other)), want_other, tolerance)
    except Exception as error:
        return thunk, time.perf_counter() - start, f"{type(error).__name__}: {error}"
    return thunk, seconds, problem


def fill_speeds(lines: list[Line], calls: dict[str, Thunk], device: str) -> None:
    for _ in range(2):
        for call in calls.values():
            call()
    seconds = measure(calls, device, ROUNDS, sample_seconds=0.03)
    for line in lines:
        if line.mode in seconds:
            line.against_eager = ratio(seconds, "eager", line.mode)
            line.against_stock = ratio(seconds, "stock", line.mode)


def table_of(lines: list[Line], device: str) -> Table:
    facts = ", ".join(f"{name} {value}" for name, value in machine(device).items())
    legend = "× eager, × stock: how many times as fast as eager and as torch.compile"
    table = Table(title=f"torchair on {device}", caption=f"{legend}\n{facts}")
    for title in ("model", "mode", "shapes", "equal"):
        table.add_column(title, no_wrap=True)
    for title in ("breaks", "fall-backs", "ready", "× eager", "× stock"):
        table.add_column(title, justify="right")
    for line in lines:
        equal = "[green]yes[/green]" if line.problem is None else "[red]NO[/red]"
        table.add_row(
            line.model, line.mode, line.shapes, equal, line.breaks, line.fallbacks,
            duration(line.ready), times(line.against_eager), times(line.against_stock),
            end_section=line.shapes == "dynamic" and line.mode == MODES[-1],
        )  # fmt: skip
    return table


def advance(progress: Progress, task: TaskID, description: str) -> None:
    progress.update(task, advance=1, description=description)


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines: list[Line] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, torch.no_grad():
        task = progress.add_task("", total=len(MODELS) * STEPS)
        for name in MODELS:
            torch.compiler.reset()
            lines += demonstrate(BY_NAME[name], device, partial(advance, progress, task))
        progress.update(task, completed=len(MODELS) * STEPS, description="done")
    console.print(table_of(lines, device))
    for line in lines:
        if line.problem is not None:
            console.print(f"{line.model}, {line.mode}, {line.shapes}: {line.problem}", markup=False)
    return int(any(line.problem is not None for line in lines))


if __name__ == "__main__":
    sys.exit(main())
