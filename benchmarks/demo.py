"""`python -m benchmarks.demo`: three models in both modes, one also dynamic, a line as soon as it is known.

For each: equal to eager, graph breaks, fall-backs, time to ready and (static) to the better program, and its
speed against eager and stock `torch.compile`. Ends with 0 only if every result of ours is equal.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

import torchair
from benchmarks.columns import BY_NAME as COLUMN_BY_NAME
from benchmarks.columns import air, own_copy
from benchmarks.equality import snapshot, why_unequal
from benchmarks.models import BY_NAME, Inputs, Model, ResNet, bert, llama
from benchmarks.report import console, duration, machine, ratio, times
from benchmarks.timing import Thunk, measure

# With few layers, so that nobody waits; the quickest to compile first.
MODELS = (
    replace(BY_NAME["cnn"], build=partial(ResNet, 16, blocks=1)),
    replace(BY_NAME["bert"], build=partial(bert, layers=1)),
    replace(BY_NAME["llama-prefill"], name="llama", build=partial(llama, layers=1)),
)
MODES = {"graph": "max-autotune", "capture": "npugraph_ex"}
WITH_SYMBOLS = ("cnn",)
"""Models that are shown with symbolic sizes, too."""
ROUNDS = 5
NEXT = """
Try next:
  docs/getting-started/quickstart.md          your own model, in three lines
  python -m torchair --help          compare, explain, export and run graphs
  python -m benchmarks --help        these figures in full
"""
# Widths that are known before the lines are.
WIDTHS = {"model": 14, "mode": 8, "shapes": 8, "equal": 6, "breaks": 7, "fall-backs": 11, "ready": 8,
          "better": 8, "× eager": 8, "× stock": 8}  # fmt: skip


@dataclass
class Line:
    """One line of the table. `problem` says what differs from eager."""

    model: str
    mode: str
    shapes: str
    breaks: str
    fallbacks: str
    ready: float
    problem: str | None
    better: float | None = None
    against_eager: float | None = None
    against_stock: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        speeds = times(self.against_eager), times(self.against_stock)
        equal = "yes" if self.problem is None else "NO"
        known = (self.model, self.mode, self.shapes, equal, self.breaks, self.fallbacks)
        return (*known, duration(self.ready), duration(self.better), *speeds)


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

    @cached_property
    def told(self) -> tuple[str, str]:
        return explained(self)

    @cached_property
    def stock(self) -> tuple[Thunk, Line]:
        return prepare("stock", self, "static", ("-", "-"))


def demonstrate(device: str) -> Iterator[Line]:
    """A model is timed when its better programs are there. While they are built, it serves with symbols, and
    stock `torch.compile` compiles it, and the next one.
    """
    better: list[float] = []
    torchair.on_optimised(lambda built: better.append(built.seconds))
    subject = Subject.of(MODELS[0], device)
    for model, following in zip(MODELS, [*MODELS[1:], None], strict=True):
        better.clear()
        made = [prepare(mode, subject, "static", subject.told) for mode in MODES]
        for call, _ in made:
            call()  # a second call, for which a better program is built
        for mode in MODES if model.name in WITH_SYMBOLS else ():
            yield prepare(mode, subject, "dynamic", subject.told)[1]
        lines = [subject.stock, *made]
        upcoming = subject if following is None else Subject.of(following, device)
        _ = upcoming.stock, upcoming.told
        torchair.wait_until_optimised()
        yield from timed(subject, lines, max(better, default=None), device)
        subject = upcoming


def timed(
    subject: Subject, lines: list[tuple[Thunk, Line]], better: float | None, device: str
) -> Iterator[Line]:
    """Stock `torch.compile` and both modes, with their speeds."""
    calls: dict[str, Thunk] = {"eager": partial(subject.module, **subject.feeds[0])}
    for call, line in lines:
        line.problem = line.problem or why_unequal(
            snapshot(call()), subject.wants[0], subject.model.tolerance
        )
        if line.problem is None:
            fill_speeds(line, calls | {line.mode: call}, device)
        if line.mode in MODES:
            line.better = better
        elif line.problem is None:
            calls[line.mode] = call
        yield line


def explained(subject: Subject) -> tuple[str, str]:
    """How many graph breaks, and which ops graph mode carries through. What `explain` prints is dropped."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            report = torchair.explain(own_copy(subject.module), **subject.feeds[0])
    except Exception as error:
        return "?", f"explain failed: {type(error).__name__}"
    names = sorted({str(reason.op) for reason in report.fallbacks})
    return str(len(report.graph_breaks)), ", ".join(names) or "none"


def prepare(column: str, subject: Subject, shapes: str, told: tuple[str, str]) -> tuple[Thunk, Line]:
    """The compiled call, and its line: seconds to a first result, and what differs from eager (dynamic: at
    both shapes).
    """
    (feed, other), (want, want_other) = subject.feeds, subject.wants
    tolerance, is_dynamic = subject.model.tolerance, shapes == "dynamic"
    make = COLUMN_BY_NAME[column].make
    if column in MODES:
        # With symbols this shows what serves at once: nothing better is built.
        engine = {"compile_budget_s": 0} if is_dynamic else {"compile_workers": len(MODES)}
        make = air(MODES[column], **engine)
    start = time.perf_counter()
    call = make(subject.module, is_dynamic)
    thunk = partial(call, **feed)
    try:
        got = snapshot(thunk())
        seconds = time.perf_counter() - start
        problem = why_unequal(got, want, tolerance)
        if problem is None and is_dynamic:
            problem = why_unequal(snapshot(call(**other)), want_other, tolerance)
    except Exception as error:
        seconds, problem = time.perf_counter() - start, f"{type(error).__name__}: {error}"
    return thunk, Line(subject.model.name, column, shapes, *told, seconds, problem)


def fill_speeds(line: Line, calls: dict[str, Thunk], device: str) -> None:
    for _ in range(2):
        for call in calls.values():
            call()
    seconds = measure(calls, device, ROUNDS, sample_seconds=0.03)
    line.against_eager = ratio(seconds, "eager", line.mode)
    line.against_stock = ratio(seconds, "stock", line.mode) if line.mode in MODES else None


def row(*cells: str) -> Table:
    """One line, below those before it."""
    made = Table.grid(padding=(0, 1))
    for width in WIDTHS.values():
        made.add_column(width=width, overflow="fold")
    made.add_row(*map(Text, cells))
    return made


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    facts = ", ".join(f"{name} {value}" for name, value in machine(device).items())
    console.print(f"torchair on {device} ({facts})", markup=False)
    console.print(
        "ready: seconds to the first result; better: until the better program is there", markup=False
    )
    console.print("× eager, × stock: how many times as fast as eager and as torch.compile\n", markup=False)
    console.print(row(*WIDTHS), style="bold")
    problems: list[Line] = []
    with torch.no_grad():
        for line in demonstrate(device):
            console.print(row(*line.cells))
            if line.problem is not None:
                problems.append(line)
    for line in problems:
        console.print(f"{line.model}, {line.mode}, {line.shapes}: {line.problem}", markup=False)
    console.print(NEXT, markup=False)
    return int(any(line.mode in MODES for line in problems))


if __name__ == "__main__":
    sys.exit(main())
