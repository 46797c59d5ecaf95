"""Programs and their code, as all code generators use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.core.errors import NotPossible
from torchair.core.program import Code, Program, ProgramProxy, code_of


class Boxed:
    """Run a function of a list without gradients, which AOTAutograd computes."""

    __slots__ = ("code", "run")
    # AOTAutograd passes the arguments as one list where this is set.
    _boxed_call = True

    def __init__(self, code: Code, run: Callable[[list[Any]], Sequence[Any]]) -> None:
        self.code = code
        self.run = run

    @property
    def kind(self) -> str:
        """Return the kind of the code."""
        return self.code.kind

    @property
    def source(self) -> str:
        """Return the source of the code."""
        return self.code.source

    @property
    def standalone(self) -> Callable[..., str | None] | None:
        """Return a function that writes the program as a module of its own, or None."""
        return getattr(self.code, "standalone", None)

    def __call__(self, args: list[Any]) -> list[Any]:
        # To enter `no_grad` costs more than to test, and AOTAutograd has usually entered it already.
        if torch.is_grad_enabled():
            with torch.no_grad():
                return list(self.run(args))
        return list(self.run(args))


@dataclass(frozen=True)
class FxCode:
    """Code of a graph that FX itself runs: the last fallback, or a graph without anything to compile."""

    gm: fx.GraphModule
    kind: str = "fx"

    @property
    def source(self) -> str:
        """Return the code that FX generated."""
        return self.gm.code

    def load(self) -> Boxed:
        """Return the program."""
        return Boxed(self, lambda args: self.gm(*args))


class Piece:
    """A program as a function of separate inputs, which generated code can call."""

    __name__ = "piece"

    def __init__(self, program: Program) -> None:
        self.program = program

    def __reduce__(self) -> Any:
        return _loaded_piece, (code_of(self.program),)

    def __call__(self, *args: Any) -> list[Any]:
        return self.program(list(args))


def _loaded_piece(code: Code) -> Piece:
    return Piece(code.load())


@dataclass(frozen=True)
class NonSerializableCode(ProgramProxy):
    """Code of a program whose constants also live outside of it and may be updated there. In another process
    they would be copies.
    """

    program: Code

    @property
    def standalone(self) -> Callable[..., str | None] | None:
        """Return the writer of the program, with the current constants."""
        return getattr(self.program, "standalone", None)

    def load(self) -> Program:
        """Return the program again, with the same constants."""
        return self.program.load()

    def __reduce__(self) -> Any:
        raise NotPossible(
            "constants of the graph are held outside of it, as weights of a module that was traced without "
            "Dynamo",
            next="pass them as inputs",
        )


@dataclass(frozen=True)
class WrapperCode(ProgramProxy):
    """Code of a program that wraps another: how to build it from that one."""

    make: Callable[..., Program]
    program: Code
    given: tuple[Any, ...]

    def load(self) -> Program:
        """Return the wrapper with the program in it."""
        return self.make(self.program.load(), *self.given)
