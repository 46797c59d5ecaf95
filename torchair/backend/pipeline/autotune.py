"""Offline tuning (`aoe_config.aoe_mode`): a graph of fixed sizes is compiled in several ways, its first call
tries them out, and the fastest serves from then on. The result is a file in the working directory, and the
code is kept beside it, so the next process neither tries nor compiles.

Trials repeat the graph: on copies of what it writes, with the random state as it was. A graph whose calls do
more than that (streams, messages to other processes) is not tuned.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchair.backend.pipeline.context import Context, Route
from torchair.backend.settings.autotune_config import AutotuneConfig, Candidate
from torchair.capture.base.inputs import mutated_inputs
from torchair.codegen import BUILDING
from torchair.codegen.native.native_library import graph_text
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import first_line, is_of_user
from torchair.core.log import logger, progress
from torchair.core.program import Code, Program, ProgramWrapper, code_of
from torchair.core.torch_private.compilers.inductor import build_facts, code_kept_in
from torchair.debug.dumps.files import WarnOnWriteError, write_text
from torchair.devices import CaptureTarget, Device, get_device
from torchair.fxgraph.effects import draws, written_by
from torchair.fxgraph.symbols import has_symbols
from torchair.passes.pass_manager import PassFailed

CODE = "aoe_code"
"""Of the working directory: the folder of compiled code."""
UNTUNED = "aoe_mode='2' does not tune a graph"
LONGEST = 5.0  # seconds of timed runs of one way, in each round
ROUNDS = 2  # the first to run would pay for a machine that has to wake up, or is busy for a while
CLOSE = 1.02  # as fast as the fastest: of such ways the first is taken

Make = Callable[[str, Candidate, str], Program]
"""Compiles a graph by a code generator, in one way, and keeps the code in a folder."""


def tuned_program(make: Make, gm: fx.GraphModule, ctx: Context) -> Program | None:
    """The program of a graph that was tuned before, or one that is tuned in its first call; None where it
    cannot be compiled in any of the ways.
    """
    plan = ctx.settings.tuning
    assert plan is not None, "asked before: can_be_tuned"
    ways = _ways(plan, ctx)
    folder = str(plan.folder / CODE)
    result = Result(plan.folder / f"aoe_result_{_digest(gm, ctx, ways)}.json", ctx.degradations)
    way = None if plan.again else result.read(ways)
    if way is not None:
        found = _built(make, way, folder)
        if found.program is not None:
            return found.program
        what = f"{way} was the fastest, and now it fails ({found.failed}): the graph is tuned again"
        ctx.degradations.add(what, here=True)
    tries = [_built(make, way, folder) for way in ways]
    if not any(each.program for each in tries):
        ctx.degradations.add(f"{UNTUNED}: {tries[0].failed}", here=True)
        return None
    trials = Trials(ctx.device, frozenset(mutated_inputs(gm, ctx.inputs)), plan.repeats)
    return AutotunedProgram(tries, trials, folder, lambda: result.write(tries, ctx))


def can_be_tuned(gm: fx.GraphModule, ctx: Context) -> bool:
    """Is a graph to be tuned? Where that was asked for and cannot be, it is told."""
    plan = ctx.settings.tuning
    if plan is None:
        return False
    why = why_not(gm, ctx) or ("" if _ways(plan, ctx) else "its code generator is no candidate")
    if why:
        ctx.degradations.add(f"{UNTUNED}: {why}", here=True)
    return not why


def why_not(gm: fx.GraphModule, ctx: Context) -> str:
    """The reason not to tune a graph; empty where it can be."""
    settings = ctx.settings
    if settings.run_eagerly or settings.is_untouched or ctx.plan.route is Route.INTERPRET:
        return "its ops run one by one"
    if has_symbols(ctx.inputs):
        return "its sizes are symbols (torch.compile(dynamic=False) makes graphs of fixed sizes)"
    effect = next(filter(_has_other_effects, gm.graph.nodes), None)
    return "" if effect is None else f"{effect.target} has effects that trials would repeat"


def _has_other_effects(node: fx.Node) -> bool:
    """Does a call do more than to compute, to write into tensors and to draw random numbers?"""
    return node.op == "call_function" and node.is_impure() and not written_by(node) and not draws(node)


def _ways(plan: AutotuneConfig, ctx: Context) -> list[Candidate]:
    """What to try: as planned or, if nothing is, what the device offers; of one code generator where one was
    asked for.
    """
    ways = plan.ways or [Candidate(kind, options) for kind, options in get_device(ctx.device).ways]
    asked = ctx.settings.codegen
    return [way for way in ways if asked in ("auto", way.codegen)]


def _digest(gm: fx.GraphModule, ctx: Context, ways: Sequence[Candidate]) -> str:
    """All that a result depends on, as one name: the graph, what there is to choose from, the machine."""
    facts = [
        ctx.request.is_backward,
        ctx.request.is_inference,
        ctx.plan.uses_ir,
        ctx.request.has_guards,
        ctx.request.static_inputs,
    ]
    facts += [ctx.settings.frozen_parameter, *ways]
    lines = [*map(str, facts), *build_facts(), *graph_text(gm)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@dataclass
class CandidateTrial:
    """One way, and what came of it."""

    way: Candidate
    program: Program | None = None
    seconds: float = math.inf
    failed: str = ""

    def data(self) -> dict[str, Any]:
        """As it stands in a file."""
        came = {"failed": self.failed} if self.failed else {"microseconds": round(self.seconds * 1e6, 2)}
        return self.way.data() | came


def _built(make: Make, way: Candidate, folder: str) -> CandidateTrial:
    """Compile in one way; a pass that fails is somebody else's business."""
    try:
        return CandidateTrial(way, make(way.codegen, way, folder))
    except PassFailed:
        raise
    except Exception as error:
        return CandidateTrial(way, failed=_why_left_out(way, error))


def _why_left_out(way: Candidate, error: Exception) -> str:
    if is_of_user(error):
        raise error
    why = f"{type(error).__name__}: {first_line(error)}"
    logger.info("tuning leaves out %s: %s", way, why)
    return why


def fastest(tries: Sequence[CandidateTrial]) -> CandidateTrial:
    """The first of those that are as fast as any."""
    bound = min(each.seconds for each in tries) * CLOSE
    return next(each for each in tries if each.seconds <= bound)


@dataclass(frozen=True)
class Result:
    """What was found out about one graph, as a file."""

    path: Path
    degradations: Diagnostics

    def read(self, ways: Sequence[Candidate]) -> Candidate | None:
        """The way that was the fastest; None where nobody tried. A file that does not say is told."""
        if not self.path.exists():
            return None
        try:
            best = json.loads(self.path.read_text(encoding="utf-8"))["best"]
            return next(way for way in ways if way.data() == best)
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            self.degradations.add(f"{self.path} is no result of tuning ({why}): the graph is tuned again")
            return None

    def write(self, tries: Sequence[CandidateTrial], ctx: Context) -> None:
        """Keep it for the next process."""
        best = fastest(tries)
        if best.failed:
            self.degradations.add(f"{UNTUNED}: {best.failed}", here=True)
            return
        content = {
            "graph": ctx.name,
            "device": str(ctx.device),
            "torch": torch.__version__,
            "best": best.way.data(),
            "tried": [each.data() for each in tries],
        }
        with WarnOnWriteError(self.degradations, "a result of tuning"):
            write_text(self.path, json.dumps(content, indent=1) + "\n")
        logger.event("%s: %s is the fastest of %d ways: %s", ctx.name, best.way, len(tries), self.path)


@dataclass(frozen=True)
class Trials:
    """How programs of one graph are timed."""

    device: torch.device
    written: frozenset[int]
    """Inputs that the graph writes: each run gets copies of them."""
    repeats: int
    """Timed runs of each program, in all rounds."""

    @property
    def rounds(self) -> int:
        """How often it is the turn of each."""
        return min(ROUNDS, self.repeats)

    @property
    def row(self) -> Device:
        return get_device(self.device)

    @property
    def records(self) -> bool:
        """Does the device run recordings, and not programs?"""
        return self.row.why_no_graphs() is None

    def seconds(self, program: Program, args: Sequence[Any]) -> float:
        """The quickest of several runs: of a recording where the device makes them, as of later calls."""
        program(self._given(args))  # kernels are loaded, and tuned, when they first run
        if self.records:
            with self._recorded(program, args) as replay:
                return self._quickest(lambda: replay)
        return self._quickest(lambda: _call(program, self._given(args)))

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Inside, random numbers may be drawn, and afterwards none were."""
        devices = [self.device.index or 0] if self.device.type != "cpu" else []
        kind = "cuda" if self.device.type == "cpu" else self.device.type
        with torch.random.fork_rng(devices, device_type=kind), torch.no_grad():
            yield

    @contextlib.contextmanager
    def _recorded(self, program: Program, args: Sequence[Any]) -> Iterator[Callable[[], Any]]:
        row, device = self.row, self.device
        into = CaptureTarget(row.new_pool(), row.new_stream(device), "thread_local", device)
        graph, kept = row.record(program, self._given(args), into)
        try:
            yield graph.replay
        finally:
            row.synchronize(device)
            del kept
            graph.reset()

    def _quickest(self, prepare: Callable[[], Callable[[], Any]]) -> float:
        best, end = math.inf, time.perf_counter() + LONGEST
        for _ in range(math.ceil(self.repeats / self.rounds)):
            run = prepare()
            self._wait()
            began = time.perf_counter()
            run()
            self._wait()
            now = time.perf_counter()
            best = min(best, now - began)
            if now > end:
                break
        return best

    def _wait(self) -> None:
        if self.records:
            self.row.synchronize(self.device)

    def _given(self, args: Sequence[Any]) -> list[Any]:
        """Arguments that a program may write and drop."""
        return [_copy(value) if place in self.written else value for place, value in enumerate(args)]


def _call(program: Program, args: list[Any]) -> Callable[[], Any]:
    return lambda: program(args)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in memory of their own, at the same place in it."""
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return memory.set_(tensor.untyped_storage().clone(), *place)


class AutotunedProgram(ProgramWrapper):
    """A program that is several until its first call: that one tries them, and the fastest stays."""

    def __init__(
        self, tries: list[CandidateTrial], trials: Trials, folder: str, keep: Callable[[], None]
    ) -> None:
        self._tries = tries
        self._trials = trials
        self._folder = folder
        self._keep: Callable[[], None] | None = keep
        self._lock = threading.Lock()
        # Until then it is what asks most of its arguments: compiled code, if there is any.
        made = [each.program for each in tries if each.program is not None]
        self.program = min(made, key=lambda program: program.kind == "eager")

    @property
    def code(self) -> Code | None:
        """Of the program that was chosen."""
        return code_of(self.program) if self._keep is None else None

    def __call__(self, args: list[Any]) -> list[Any]:
        if self._keep is not None:
            self._choose(args)
        return self.program(args)

    def _choose(self, args: Sequence[Any]) -> None:
        # What runs while somebody records becomes part of the recording: that call is no time to try.
        if self._trials.records and self._trials.row.is_capturing():
            return
        with self._lock:
            if self._keep is None:
                return
            with progress("tuning"), self._trials.unseen(), BUILDING, code_kept_in(self._folder):
                for each in self._tries * self._trials.rounds:
                    self._try(each, args)
            best = fastest(self._tries)
            if best.program is not None and not best.failed:
                self.program = best.program
            self._keep()
            self._keep, self._tries = None, []

    def _try(self, each: CandidateTrial, args: Sequence[Any]) -> None:
        if each.program is None or each.failed:
            return
        try:
            each.seconds = min(each.seconds, self._trials.seconds(each.program, args))
        except Exception as error:
            each.seconds, each.failed = math.inf, _why_left_out(each.way, error)
