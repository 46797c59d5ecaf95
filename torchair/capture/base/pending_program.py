"""A better program on its way: made elsewhere, taken over by a runner when it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torchair.core.log import capture_logger as logger
from torchair.core.program import Code, Program, ProgramWrapper, code_of

AGAIN = 2
"""The call with which a graph is worth a better program."""


class PendingProgram:
    """Once `is_done` is set, `take` gives the program, or None when it could not be made."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.is_asked = False
        """Was it wanted already?"""
        self.calls: Callable[[], int] = lambda: 0
        """How often was the graph called that waits for it? Set by who waits."""
        self._then: list[Callable[[], None]] = []

    def then(self, call: Callable[[], None]) -> None:
        """Have this called once it is done, by whoever finds that out; at once if it is."""
        self._then.append(call)
        if self.is_done.is_set():
            self.tell()

    def tell(self) -> None:
        """It is done: call those who asked for it, each once. What they raise is not for who builds."""
        while self._then:
            try:
                call = self._then.pop()
            except IndexError:
                return  # another thread was quicker
            try:
                call()
            except Exception:
                logger.exception("what follows on a better program failed")

    def wanted(self) -> None:
        """The graph is called once more: it is worth a better program."""
        self.is_asked = True

    def recipe(self) -> Any:
        """How it is made, as data with which another process can begin; None where that is no data."""
        return None

    def peek(self) -> Program | None:
        """What `take` gives, for who will not run it: nobody is told where it could not be made."""
        return None

    def take(self) -> Program | None:
        """The program. Called once, by the thread that wants to run it."""
        raise AssertionError("a subclass says where the program comes from")


Specialist = Callable[[Hashable, Sequence[Any]], PendingProgram | None]
"""Starts to make a program for one key from the arguments of a call; None when it does not want to."""


class SwappableProgram(ProgramWrapper):
    """A program that serves until a better one is there."""

    def __init__(self, program: Program, pending: PendingProgram) -> None:
        self.program = program
        self._pending: PendingProgram | None = pending
        self._calls = 0
        pending.calls = lambda: self._calls

    @property
    def code(self) -> Code | None:
        """Of the program that serves now."""
        return code_of(self.program)

    @property
    def awaited(self) -> PendingProgram | None:
        """The better program, if it is not here yet."""
        return self._pending

    def __call__(self, args: list[Any]) -> list[Any]:
        pending = self._pending  # read once: another thread may take the program meanwhile
        if pending is not None:
            self._ask(pending)
        return self.program(args)

    def _ask(self, pending: PendingProgram) -> None:
        self._calls += 1
        if self._calls >= AGAIN and not pending.is_asked:
            pending.wanted()
        if pending.is_done.is_set():
            self.program = pending.take() or self.program
            self._pending = None


NO_STATIC_KERNELS = "static_kernel_compile has no effect on a graph that is recorded in pieces"


def lost_in_pieces(specialist: Specialist) -> str:
    """What is told where a graph is recorded in pieces, which have no programs for single keys."""
    return getattr(specialist, "lost_in_pieces", NO_STATIC_KERNELS)


class ProgramsByKey:
    """The program of each key: the common one, until its own is there."""

    def __init__(self, common: Program, specialist: Specialist) -> None:
        self._common = common
        self._specialist = specialist
        self._made: dict[Hashable, Program] = {}

    def ask(self, key: Hashable, args: Sequence[Any]) -> None:
        """Start to make the program of a key, or do so when it comes again."""
        pending = self._specialist(key, args)
        if pending is not None:
            self._made[key] = SwappableProgram(self._common, pending)

    def of(self, key: Hashable) -> Program:
        """The best program that is there."""
        return self._made.get(key, self._common)

    def drop(self, key: Hashable) -> None:
        """The key is not used any more."""
        self._made.pop(key, None)
