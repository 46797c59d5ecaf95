"""Interfaces of compiled programs: one compiled graph as a callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torchair.core.errors import NotPossible

Call = Callable[[list[Any]], list[Any]]
"""A call with a list of arguments, which it may clear."""


@runtime_checkable
class Program(Protocol):
    """One compiled FX graph. A call may clear the list `args`. Mutated inputs are updated in place."""

    @property
    def kind(self) -> str:
        """`eager`, `inductor`, `native`, `reference`, or `fx` for a graph that FX runs."""
        ...

    @property
    def source(self) -> str:
        """Readable source of the program: Python, or the generated wrapper."""
        ...

    def __call__(self, args: list[Any]) -> list[Any]: ...


class Code(Protocol):
    """A program as data (`core/storage/serialization.py`): the output of its code generator, and how to load
    it. Programs in memory are loaded from it, in this process or another.
    """

    @property
    def kind(self) -> str:
        """Kind of the program."""
        ...

    @property
    def source(self) -> str:
        """Source of the program."""
        ...

    def load(self) -> Program:
        """Load the program in this process."""
        ...


def code_of(program: Program) -> Code:
    """Return the data a program was created from.

    Raises:
        NotPossible: if the program exists only in this process.
    """
    code = getattr(program, "code", None)
    if code is None:
        raise NotPossible(
            f"a program of kind {program.kind!r} ({type(program).__name__}) cannot be serialized"
        )
    return code


class ProgramProxy:
    """Base of objects that stand for a program or its code and have its kind and source."""

    program: Any

    @property
    def kind(self) -> str:
        """Kind of the program."""
        return self.program.kind

    @property
    def source(self) -> str:
        """Source of the program."""
        return self.program.source


class ProgramWrapper(ProgramProxy):
    """A program that wraps another program."""

    _boxed_call = True
    program: Program

    @property
    def code(self) -> Code | None:
        """Code of wrapper and program, or None if this wrapper cannot be serialized."""
        return None

    @property
    def standalone(self) -> Any:
        """The function that writes the program as a standalone module, or None."""
        return getattr(self.program, "standalone", None)
