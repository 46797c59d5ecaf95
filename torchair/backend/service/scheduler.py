"""Programs built in the background: worker processes compile them, a thread for each loads what it made, and
the next call takes it. The graphs that are called most come first.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchair.backend.service.request import CompileRequest, CompileResult, workplace
from torchair.backend.service.worker_pool import compile_in_worker
from torchair.capture import PendingProgram
from torchair.core.errors import first_line
from torchair.core.log import capture_logger as logger
from torchair.core.log import progress
from torchair.core.program import Program


class Optimised(NamedTuple):
    """A better program that is there: from the next call on it serves."""

    graph: str
    codegen: str
    seconds: float
    """That it took, waiting included."""


class SwapGroup:
    """Programs that are taken over at the same time: those of a forward and of its backward. Where one cannot
    be made, none is taken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[Job] = []

    def forked(self) -> None:
        """In a child of this process: whoever held the lock is not there."""
        self._lock = threading.Lock()

    def add(self, job: Job) -> None:
        """One more, whose end the others wait for."""
        with self._lock:
            self._jobs.append(job)

    def ended(self) -> None:
        """One of them is built, or will not be."""
        with self._lock:
            if not all(job.has_ended for job in self._jobs):
                return
            jobs = list(self._jobs)
            failed = next((job.failed for job in jobs if job.failed), "")
            for job in jobs:
                job.failed = failed
                job.is_done.set()
        for job in jobs:
            job.tell()


@dataclass(frozen=True)
class CompileBudget:
    """How much may be built."""

    seconds: float | None = None
    """Of all builds of this process together, beyond which none is begun; None for no bound."""
    workers: int = 1
    """Processes at the same time."""


NO_LIMITS = CompileBudget()


@dataclass(frozen=True)
class Subtask:
    """One order of a task."""

    prepare: Callable[[], CompileRequest]
    """Called in the background."""
    find: Callable[[], CompileResult | None] = lambda: None
    """What another process has made meanwhile, or before."""
    keep: Callable[[CompileResult], None] = lambda made: None
    """Told what was made."""


class LoadedResult(NamedTuple):
    """What came of a part."""

    program: Program
    made: CompileResult


@dataclass(frozen=True)
class CompileTask:
    """What is to be built, and for whom."""

    title: str
    parts: Sequence[Subtask]
    """All of them or none."""
    finish: Callable[[Sequence[LoadedResult]], Program]
    """Makes the program of the parts, with what the graph needs around it."""
    tell: Callable[[str], None]
    """Told where there will be no program, by who would take it."""
    limits: CompileBudget = NO_LIMITS
    together: SwapGroup = field(default_factory=SwapGroup)
    recipe: Callable[[], Any] = lambda: None
    """The same as data, for a later process; None where it is none."""


class _NotBuilt(Exception):
    """A part could not be made, and why."""


class Job(PendingProgram):
    """One program on its way."""

    def __init__(self, task: CompileTask) -> None:
        super().__init__()
        self.task = task
        self.failed = ""
        self.has_ended = False
        self._began = time.perf_counter()
        self._program: Program | None = None
        self._is_told = False
        task.together.add(self)
        SCHEDULER.expect(self)

    def recipe(self) -> Any:
        """See `PendingProgram.recipe`."""
        return self.task.recipe()

    def wanted(self) -> None:
        """The graph is called again and again: build it."""
        self.is_asked = True
        SCHEDULER.give(self)

    def run(self, seconds: float | None = None) -> None:
        """Compile in a process of its own, in so much time, and load what it made."""
        end = None if seconds is None else time.monotonic() + seconds
        try:
            built = [self._found(part) or self._compiled(part, end) for part in self.task.parts]
            self._program = self.task.finish(built)
        except _NotBuilt as error:
            self.failed = str(error)
        except Exception as error:
            self.failed = f"built: {type(error).__name__}: {first_line(error)}"
        self.end()

    def _found(self, part: Subtask) -> LoadedResult | None:
        """What another process has made, where it can be loaded in this one."""
        made = part.find()
        if made is None:
            return None
        try:
            return LoadedResult(part.prepare().load(made), made)
        except Exception as error:
            logger.info("%s is built again, what is kept cannot be loaded: %s", self.task.title, error)
            return None

    def _compiled(self, part: Subtask, end: float | None) -> LoadedResult:
        phase = "compiled"
        try:
            order = part.prepare()
            with workplace(order.root) as folder:
                left = None if end is None else max(0.0, end - time.monotonic())
                made, why = compile_in_worker(order, folder, left)
            if made is None:
                raise _NotBuilt(f"{phase}: {why}")
            phase = "loaded"
            built = LoadedResult(order.load(made), made)
        except _NotBuilt:
            raise
        except Exception as error:
            raise _NotBuilt(f"{phase}: {type(error).__name__}: {first_line(error)}") from error
        part.keep(made)
        return built

    def end(self, why: str = "", *, is_wished: bool = False) -> None:
        """Nothing more is done for it: it is there, or it failed; whether that is what the user wished."""
        self.failed = self.failed or why
        self._is_told = is_wished
        self.has_ended = True
        self.task.together.ended()

    def optimised(self) -> Optimised | None:
        """What is there now; None where it failed."""
        if self.failed or self._program is None:
            return None
        return Optimised(self.task.title, self._program.kind, time.perf_counter() - self._began)

    def peek(self) -> Program | None:
        return None if self.failed else self._program

    def take(self) -> Program | None:
        """The program; None when it could not be made."""
        if not self.failed:
            return self._program
        if not self._is_told:
            self._is_told = True
            self.task.tell(self.failed)
        return None


class CompileScheduler:
    """The builds of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._expected: weakref.WeakSet[Job] = weakref.WeakSet()
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._threads: set[threading.Thread] = set()
        self._done = 0
        self._spent = 0.0
        self._listeners: list[Callable[[Optimised], None]] = []

    def forked(self) -> None:
        """In a child of this process, which has none of our threads: what they had not done is expected once
        more, and the next call of its graph asks for it.
        """
        self._changed = threading.Condition()
        self._threads = set()
        for job in (*self._waiting, *self._running):
            job.task.together.forked()
            job.is_asked = False
            self._expected.add(job)
        self._waiting, self._running = [], []

    def expect(self, job: Job) -> None:
        """This may be given soon."""
        with self._changed:
            self._expected.add(job)

    def give(self, job: Job) -> Job:
        """Build this; of those that wait, the most called first."""
        with self._changed:
            if job not in self._expected:
                return job
            self._expected.remove(job)
            self._waiting.append(job)
            if len(self._threads) < job.task.limits.workers:
                self._start_thread()
            self._changed.notify_all()
        return job

    def _start_thread(self) -> None:
        name = f"torchair builds {len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
            self._threads.add(thread)
        except RuntimeError as error:  # no more threads: too many, or Python is about to end
            for job in () if self._threads else self._waiting:
                job.end(f"built: {error}", is_wished=True)
            self._waiting = self._waiting if self._threads else []

    def wait(self, seconds: float | None = None) -> bool:
        """Until nothing is left to build, be it wanted already or not; False when that takes longer. Who is
        told about a program does not wait for what comes after it.
        """
        with self._changed:
            for job in list(self._expected):
                self.give(job)
            if threading.current_thread() in self._threads:
                return not self._waiting and len(self._running) == 1
            return self._changed.wait_for(lambda: not self._waiting and not self._running, seconds)

    def listen(self, call: Callable[[Optimised], None]) -> None:
        """Call this for each program that is there."""
        with self._changed:
            self._listeners.append(call)

    def _work(self) -> None:
        while True:
            self._next()

    def _next(self) -> None:
        """One job. Nothing holds it afterwards: its graph may be gone."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting))
            job = max(self._waiting, key=lambda job: job.calls())
            self._waiting.remove(job)
            self._running.append(job)
            title = f"builds {self._done + 1}/{self._done + len(self._waiting) + len(self._running)}"
        began = time.perf_counter()
        try:
            with progress(title):
                self._build(job)
            with self._changed:
                self._spent += time.perf_counter() - began
                self._done += 1
            self._tell(job)
        except Exception as error:  # whoever waits for it must not wait for ever
            logger.exception("%s: building failed", job.task.title)
            if not job.has_ended:
                job.end(f"built: {type(error).__name__}: {first_line(error)}")
        finally:
            with self._changed:
                self._running.remove(job)
                self._changed.notify_all()

    def _build(self, job: Job) -> None:
        bound = job.task.limits.seconds
        left = None if bound is None else bound - self._spent
        if left is not None and left <= 0:
            job.end(f"built: compile_budget_s ({bound:.0f} s) is used up", is_wished=True)
            return
        job.run(left)

    def _tell(self, job: Job) -> None:
        news = job.optimised()
        if news is None:
            logger.info("%s: no better program: %s", job.task.title, job.failed)
            return
        logger.event("%s: a better program (%s) after %.1f s", *news)
        for call in list(self._listeners):
            try:
                call(news)
            except BaseException:  # `sys.exit`, say, would end the thread that builds
                logger.exception("a callback of on_optimised failed")


SCHEDULER = CompileScheduler()
os.register_at_fork(after_in_child=lambda: SCHEDULER.forked())


def wait_until_optimised(timeout: float | None = None) -> bool:
    """Wait until all better programs that are being built for graphs of this process are there, or for so
    many seconds; False when that was not long enough. From the next call of each graph on they serve.
    """
    return SCHEDULER.wait(timeout)


def on_optimised(call: Callable[[Optimised], None]) -> None:
    """Have this called, in a thread of ours, for each better program that is there: with the name of the
    graph, the code generator, and the seconds since it was asked for.
    """
    SCHEDULER.listen(call)
