"""A better program on its way: made elsewhere, taken over by a runner when it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol


class Program(Protocol):
    """What codegen makes: boxed, it may clear its arguments."""

    @property
    def kind(self) -> str: ...
    @property
    def source(self) -> str: ...

    def __call__(self, args: list[Any]) -> list[Any]: ...


class Pending:
    """Once `is_done` is set, `take` gives the program, or None when it could not be made."""

    def __init__(self) -> None:
        self.is_done = threading.Event()

    def take(self) -> Program | None:
        """The program. Called once, by the thread that wants to run it."""
        raise AssertionError("a subclass says where the program comes from")


Specialist = Callable[[Hashable, Sequence[Any]], Pending | None]
"""Starts to make a program for one key from the arguments of a call; None when it does not want to."""
