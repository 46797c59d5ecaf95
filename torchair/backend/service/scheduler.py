"""Compile programs in the background.

Worker processes compile them, one thread per worker loads the results, and the next call uses them. The
graphs with the most calls come first.
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
    """The event that an optimized program is ready. It serves from the next call on."""

    graph: str
    codegen: str
    seconds: float
    """Seconds from submission to completion, including queueing."""


class SwapGroup:
    """Programs that are swapped in at the same time: those of a forward graph and its backward graph. If one
    fails, none is used.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[Job] = []

    def forked(self) -> None:
        """Replace the lock in a forked child: the thread that held it does not exist there."""
        self._lock = threading.Lock()

    def add(self, job: Job) -> None:
        """Add a job that the others of this group wait for."""
        with self._lock:
            self._jobs.append(job)

    def ended(self) -> None:
        """Release all jobs of the group once each has ended."""
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
    """Limits of background compilation."""

    seconds: float | None = None
    """Total seconds of all compiles of this process, after which none is started; None for no limit."""
    workers: int = 1
    """The maximum number of concurrent worker processes."""


NO_LIMITS = CompileBudget()


@dataclass(frozen=True)
class Subtask:
    """One compile request of a task."""

    prepare: Callable[[], CompileRequest]
    """Create the request; called in a background thread."""
    find: Callable[[], CompileResult | None] = lambda: None
    """Return the cached result of another process, if there is one."""
    keep: Callable[[CompileResult], None] = lambda made: None
    """Cache the result."""


class LoadedResult(NamedTuple):
    """The result of a subtask, and the program that was loaded from it."""

    program: Program
    made: CompileResult


@dataclass(frozen=True)
class CompileTask:
    """A program to compile in the background."""

    title: str
    parts: Sequence[Subtask]
    """All subtasks must succeed."""
    finish: Callable[[Sequence[LoadedResult]], Program]
    """Combine the results of the subtasks, and add the wrappers that the graph needs."""
    tell: Callable[[str], None]
    """Report a failure; called by the thread that would run the program."""
    limits: CompileBudget = NO_LIMITS
    together: SwapGroup = field(default_factory=SwapGroup)
    recipe: Callable[[], Any] = lambda: None
    """Return the task as data for a later process, or None if it cannot be serialized."""


class _SubtaskFailed(Exception):
    """A subtask failed; the text is the reason."""


class Job(PendingProgram):
    """A program that is being compiled in the background."""

    def __init__(self, task: CompileTask) -> None:
        super().__init__()
        self.task = task
        self.failed = ""
        self.has_ended = False
        self._began = time.perf_counter()
        self._program: Program | None = None
        self._is_reported = False
        task.together.add(self)
        SCHEDULER.expect(self)

    def recipe(self) -> Any:
        """See `PendingProgram.recipe`."""
        return self.task.recipe()

    def wanted(self) -> None:
        """Submit the job, because its graph is called repeatedly."""
        self.is_asked = True
        SCHEDULER.give(self)

    def run(self, seconds: float | None = None) -> None:
        """Compile in a worker process, within the given seconds, and load the result."""
        end = None if seconds is None else time.monotonic() + seconds
        try:
            results = [self._load_cached(part) or self._compile(part, end) for part in self.task.parts]
            self._program = self.task.finish(results)
        except _SubtaskFailed as error:
            self.failed = str(error)
        except Exception as error:
            self.failed = f"built: {type(error).__name__}: {first_line(error)}"
        self.end()

    def _load_cached(self, part: Subtask) -> LoadedResult | None:
        """Load the cached result; None if there is none, or it cannot be loaded here."""
        made = part.find()
        if made is None:
            return None
        try:
            return LoadedResult(part.prepare().load(made), made)
        except Exception as error:
            logger.info(
                "%s is compiled again because its cached program cannot be loaded: %s", self.task.title, error
            )
            return None

    def _compile(self, part: Subtask, end: float | None) -> LoadedResult:
        phase = "compiled"
        try:
            request = part.prepare()
            with workplace(request.root) as folder:
                left = None if end is None else max(0.0, end - time.monotonic())
                result, why = compile_in_worker(request, folder, left)
            if result is None:
                raise _SubtaskFailed(f"{phase}: {why}")
            phase = "loaded"
            loaded = LoadedResult(request.load(result), result)
        except _SubtaskFailed:
            raise
        except Exception as error:
            raise _SubtaskFailed(f"{phase}: {type(error).__name__}: {first_line(error)}") from error
        part.keep(result)
        return loaded

    def end(self, why: str = "", *, is_wished: bool = False) -> None:
        """Mark the job as done or, with a reason, as failed. An expected failure is not reported."""
        self.failed = self.failed or why
        self._is_reported = is_wished
        self.has_ended = True
        self.task.together.ended()

    def optimised(self) -> Optimised | None:
        """Return the event of the finished program, or None if it failed."""
        if self.failed or self._program is None:
            return None
        return Optimised(self.task.title, self._program.kind, time.perf_counter() - self._began)

    def peek(self) -> Program | None:
        return None if self.failed else self._program

    def take(self) -> Program | None:
        """Return the program; report the failure and return None if there is none."""
        if not self.failed:
            return self._program
        if not self._is_reported:
            self._is_reported = True
            self.task.tell(self.failed)
        return None


class CompileScheduler:
    """The queue of background compiles of this process, and the threads that work on it."""

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
        """Reset the queue in a forked child, which has no worker threads. Unfinished jobs are expected again,
        and the next call of their graph submits them.
        """
        self._changed = threading.Condition()
        self._threads = set()
        for job in (*self._waiting, *self._running):
            job.task.together.forked()
            job.is_asked = False
            self._expected.add(job)
        self._waiting, self._running = [], []

    def expect(self, job: Job) -> None:
        """Register a job that may be submitted later."""
        with self._changed:
            self._expected.add(job)

    def give(self, job: Job) -> Job:
        """Submit a job. Waiting jobs are ordered by the calls of their graphs, most first."""
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
        except RuntimeError as error:  # too many threads, or Python is shutting down
            for job in () if self._threads else self._waiting:
                job.end(f"built: {error}", is_wished=True)
            self._waiting = self._waiting if self._threads else []

    def wait(self, seconds: float | None = None) -> bool:
        """Submit all expected jobs and wait until the queue is empty; return False on timeout.

        A callback does not wait for the job that it is called for.
        """
        with self._changed:
            for job in list(self._expected):
                self.give(job)
            if threading.current_thread() in self._threads:
                return not self._waiting and len(self._running) == 1
            return self._changed.wait_for(lambda: not self._waiting and not self._running, seconds)

    def listen(self, call: Callable[[Optimised], None]) -> None:
        """Register a callback for finished programs."""
        with self._changed:
            self._listeners.append(call)

    def _work(self) -> None:
        while True:
            self._next()

    def _next(self) -> None:
        """Run one job. No reference to it remains afterwards, so its graph can be freed."""
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
        except Exception as error:  # a call that waits for the job must not wait forever
            logger.exception("%s: the background compile failed", job.task.title)
            if not job.has_ended:
                job.end(f"built: {type(error).__name__}: {first_line(error)}")
        finally:
            with self._changed:
                self._running.remove(job)
                self._changed.notify_all()

    def _build(self, job: Job) -> None:
        limit = job.task.limits.seconds
        left = None if limit is None else limit - self._spent
        if left is not None and left <= 0:
            job.end(f"built: compile_budget_s ({limit:.0f} s) is used up", is_wished=True)
            return
        job.run(left)

    def _tell(self, job: Job) -> None:
        event = job.optimised()
        if event is None:
            logger.info("%s: the optimized program could not be %s", job.task.title, job.failed)
            return
        logger.event("%s: the optimized program (%s) is ready after %.1f s", *event)
        for call in list(self._listeners):
            try:
                call(event)
            except BaseException:  # `sys.exit`, for example, would end the worker thread
                logger.exception("a callback of on_optimised() failed")


SCHEDULER = CompileScheduler()
os.register_at_fork(after_in_child=lambda: SCHEDULER.forked())


def wait_until_optimised(timeout: float | None = None) -> bool:
    """Wait until all optimized programs of this process are ready. They serve from the next call on.

    Args:
        timeout: Seconds to wait at most; None for no limit.

    Returns:
        True if no compile is left, False after a timeout.

    Example:
        >>> fast = torch.compile(model, backend="npu")
        >>> fast(x)  # compiles an eager program
        >>> torchair.wait_until_optimised()
        >>> fast(x)  # runs the optimized program
    """
    return SCHEDULER.wait(timeout)


def on_optimised(call: Callable[[Optimised], None]) -> None:
    """Register a callback for optimized programs that become ready.

    Args:
        call: Called in a worker thread for each program, with an event of three fields: `graph` (its name),
            `codegen` (the code generator) and `seconds` (since the compile was submitted). An exception that
            it raises is logged.

    Example:
        >>> torchair.on_optimised(lambda event: print(event.graph, event.codegen, event.seconds))
    """
    SCHEDULER.listen(call)
