"""Programs that code generators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import NotPossible, first_line
from torchair.core.program import Call, Code, Program, ProgramProxy, ProgramWrapper, code_of

CHECKED = "expected size"
"""How the error of a check in Inductor's code begins."""


class Boxed:
    """A Program around one function of a list, run without gradients: these are AOTAutograd's business."""

    __slots__ = ("code", "run")
    # What AOTAutograd asks for: the arguments come as one list.
    _boxed_call = True

    def __init__(self, code: Code, run: Callable[[list[Any]], Sequence[Any]]) -> None:
        self.code = code
        self.run = run

    @property
    def kind(self) -> str:
        """Of the code."""
        return self.code.kind

    @property
    def source(self) -> str:
        """Of the code."""
        return self.code.source

    @property
    def standalone(self) -> Callable[..., str | None] | None:
        """Who writes the program as a module of its own, where it can be written as one."""
        return getattr(self.code, "standalone", None)

    def __call__(self, args: list[Any]) -> list[Any]:
        # Entering `no_grad` costs more than asking, and AOTAutograd has mostly entered it already.
        if torch.is_grad_enabled():
            with torch.no_grad():
                return list(self.run(args))
        return list(self.run(args))


@dataclass(frozen=True)
class FxCode:
    """A graph that FX itself runs: the last resort, or what is left where there is nothing to compile."""

    gm: fx.GraphModule
    kind: str = "fx"

    @property
    def source(self) -> str:
        """Of the graph."""
        return self.gm.code

    def load(self) -> Boxed:
        """Ready to run."""
        return Boxed(self, lambda args: self.gm(*args))


class Piece:
    """A program as a function of its inputs, one by one, for a generated function to call."""

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
    """The code of a program with constants that others hold and may update: in another process they would be
    copies.
    """

    program: Code

    @property
    def standalone(self) -> Callable[..., str | None] | None:
        """Of the program, with the constants as they are."""
        return getattr(self.program, "standalone", None)

    def load(self) -> Program:
        """The program once more, with the very same constants."""
        return self.program.load()

    def __reduce__(self) -> Any:
        raise NotPossible(
            "constants of the graph are held outside of it, as weights of a module that was traced without "
            "Dynamo",
            next="pass them as inputs",
        )


@dataclass(frozen=True)
class WrapperCode(ProgramProxy):
    """The code of a program in front of another: how it is made of that one."""

    make: Callable[..., Program]
    program: Code
    given: tuple[Any, ...]

    def load(self) -> Program:
        """Ready to run."""
        return self.make(self.program.load(), *self.given)


@dataclass(frozen=True)
class StorageOffsets:
    """Where inputs begin in their storage, by their index, and how many inputs the graph had when it was
    given.
    """

    offsets: dict[int, int]
    takes: int


class Anchored(ProgramWrapper):
    """A program that is right while some inputs begin at one place of their storage; another, of the first
    inputs alone, serves where they do not.
    """

    def __init__(
        self, program: Program, anchor: StorageOffsets, other: Code, degradations: Diagnostics
    ) -> None:
        self.program = program
        self._given = (anchor, other, degradations)
        self._offsets = tuple(anchor.offsets.items())
        self._code, self._takes = other, anchor.takes
        self._other: Call | None = None
        self._degradations = degradations

    @property
    def code(self) -> Code:
        return WrapperCode(Anchored, code_of(self.program), self._given)

    @property
    def standalone(self) -> None:
        """A module of its own would not look at offsets."""

    def __call__(self, args: list[Any]) -> list[Any]:
        for index, offset in self._offsets:
            if args[index].storage_offset() != offset:
                if self._other is None:
                    now = args[index].storage_offset()
                    self._degradations.add(
                        f"input {index} begins at {now} of its storage, and at {offset} when it was traced; "
                        "as_strided counts from the start of the storage, so the ops run one by one",
                        here=True,
                    )
                    self._other = self._code.load()
                return self._other(args[: self._takes])
        return self.program(args)


class Doubted(ProgramWrapper):
    """A program with ops in it that may not have the layouts they told: its code checks. From the first call
    in which one has another, another program serves, which is loaded then. Only for graphs that write
    nothing: that call is run once more.
    """

    def __init__(self, program: Program, other: Code, degradations: Diagnostics, at: str) -> None:
        self.program = program
        self._given = (other, degradations, at)
        self._code = other
        self._other: Program | None = None
        self._degradations = degradations
        self._at = at

    @property
    def code(self) -> Code:
        return WrapperCode(Doubted, code_of(self.program), self._given)

    def __call__(self, args: list[Any]) -> list[Any]:
        if self._other is not None:
            return self._other(args)
        kept = list(args)
        try:
            return self.program(args)
        except AssertionError as error:
            if not str(error).startswith(CHECKED):
                raise
            self._degradations.add(
                f"ops run one by one: one has another layout than its fake says ({first_line(error)})",
                at=self._at,
                next="let register_fake tell the strides that the op returns",
            )
            self._other = self._code.load()
            return self._other(kept)
