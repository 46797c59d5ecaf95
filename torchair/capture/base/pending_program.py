"""Optimized programs that are compiled in the background; a runner switches to one when it is ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torchair.core.log import capture_logger as logger
from torchair.core.program import Code, Program, ProgramWrapper, code_of

REQUEST_ON_CALL = 2
"""The number of the call that requests the optimized program."""


class PendingProgram:
    """An optimized program. Once `is_done` is set, `take` returns it, or None if it could not be compiled."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.is_asked = False
        """Whether the program was requested already."""
        self.calls: Callable[[], int] = lambda: 0
        """Number of calls of the graph that waits for the program. The runner that waits sets it."""
        self._then: list[Callable[[], None]] = []

    def then(self, call: Callable[[], None]) -> None:
        """Register a callback for completion. It runs now if the program is done, else in the thread that
        notices.
        """
        self._then.append(call)
        if self.is_done.is_set():
            self.tell()

    def tell(self) -> None:
        """Run the registered callbacks, each once. Errors in them are logged, because the builder cannot
        handle them.
        """
        while self._then:
            try:
                call = self._then.pop()
            except IndexError:
                return  # another thread took the last one
            try:
                call()
            except Exception:
                logger.exception("a callback for the optimized program failed")

    def wanted(self) -> None:
        """Request the program: the graph is called repeatedly."""
        self.is_asked = True

    def recipe(self) -> Any:
        """Return the compile request as data for another process, or None if it is not serializable."""
        return None

    def peek(self) -> Program | None:
        """Return the program if it is ready, without reporting a failure. For callers that do not run it."""
        return None

    def take(self) -> Program | None:
        """Return the program. Called once, by the thread that runs it."""
        raise AssertionError("a subclass must implement take()")


Specialist = Callable[[Hashable, Sequence[Any]], PendingProgram | None]
"""Starts to compile a program for one key from the arguments of a call; returns None if it declines."""


class SwappableProgram(ProgramWrapper):
    """A program that is replaced by the optimized program when that is ready."""

    def __init__(self, program: Program, pending: PendingProgram) -> None:
        self.program = program
        self._pending: PendingProgram | None = pending
        self._calls = 0
        pending.calls = lambda: self._calls

    @property
    def code(self) -> Code | None:
        """The code of the current program."""
        return code_of(self.program)

    @property
    def awaited(self) -> PendingProgram | None:
        """The optimized program while it is not ready, else None."""
        return self._pending

    def __call__(self, args: list[Any]) -> list[Any]:
        pending = self._pending  # read once: another thread may take the program
        if pending is not None:
            self._ask(pending)
        return self.program(args)

    def _ask(self, pending: PendingProgram) -> None:
        self._calls += 1
        if self._calls >= REQUEST_ON_CALL and not pending.is_asked:
            pending.wanted()
        if pending.is_done.is_set():
            self.program = pending.take() or self.program
            self._pending = None


NO_STATIC_KERNELS = "static_kernel_compile has no effect on a graph that is recorded in partitions"


def lost_in_pieces(specialist: Specialist) -> str:
    """Return the warning for a graph in partitions, which have no programs for single keys."""
    return getattr(specialist, "lost_in_pieces", NO_STATIC_KERNELS)


class ProgramsByKey:
    """The program of each key: the common program until its own is ready."""

    def __init__(self, common: Program, specialist: Specialist) -> None:
        self._common = common
        self._specialist = specialist
        self._made: dict[Hashable, Program] = {}

    def ask(self, key: Hashable, args: Sequence[Any]) -> None:
        """Start to compile the program of a key, or request it when the key comes again."""
        pending = self._specialist(key, args)
        if pending is not None:
            self._made[key] = SwappableProgram(self._common, pending)

    def of(self, key: Hashable) -> Program:
        """Return the best program that is ready."""
        return self._made.get(key, self._common)

    def drop(self, key: Hashable) -> None:
        """Forget the program of a key."""
        self._made.pop(key, None)
