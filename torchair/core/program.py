"""What runs: one compiled graph behind one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torchair.core.errors import NotPossible

Call = Callable[[list[Any]], list[Any]]
"""A boxed call: it may clear its arguments."""


@runtime_checkable
class Program(Protocol):
    """One compiled FX graph. Boxed: it may clear `args`. Mutated inputs are updated in place."""

    @property
    def kind(self) -> str:
        """`eager`, `inductor`, `native`, `reference`, or `fx`: the graph as FX runs it."""
        ...

    @property
    def source(self) -> str:
        """Readable text of what runs: Python, or the generated wrapper."""
        ...

    def __call__(self, args: list[Any]) -> list[Any]: ...


class Code(Protocol):
    """A program as data (`core/storage/serialization.py`): the output of its code generator, and how to load
    it. Programs in memory are loaded from it, in this process or another.
    """

    @property
    def kind(self) -> str:
        """Of the program."""
        ...

    @property
    def source(self) -> str:
        """Of the program."""
        ...

    def load(self) -> Program:
        """The program, of this process."""
        ...


def code_of(program: Program) -> Code:
    """What a program was made from; `NotPossible` where it lives in this process alone."""
    code = getattr(program, "code", None)
    if code is None:
        raise NotPossible(f"a program of kind {program.kind!r} ({type(program).__name__}) is no data")
    return code


class ProgramProxy:
    """What stands in front of a program, or of its code, and shows that as itself."""

    program: Any

    @property
    def kind(self) -> str:
        """Whose code runs."""
        return self.program.kind

    @property
    def source(self) -> str:
        """Of the program that runs."""
        return self.program.source


class ProgramWrapper(ProgramProxy):
    """A program in front of another."""

    _boxed_call = True
    program: Program

    @property
    def code(self) -> Code | None:
        """Of both; none where the wrapper is not part of it."""
        return None

    @property
    def standalone(self) -> Any:
        """Who writes it as a module of its own, if anybody can."""
        return getattr(self.program, "standalone", None)
