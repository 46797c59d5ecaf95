"""Programs that are right only under a condition, with a fallback where it does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torchair.codegen.base.programs import WrapperCode
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import first_line
from torchair.core.program import Code, Program, ProgramWrapper, code_of
from torchair.fxgraph.symbols import Binding

MAX_REMEMBERED = 4096
"""Combinations of sizes whose check is remembered."""
LAYOUT_ASSERTION = "expected size"
"""The start of the error that an assertion in Inductor's code raises."""

Check = Callable[[list[Any]], str]
"""Return why a call does not meet a condition; the empty string if it does."""


class Guard(Protocol):
    """A condition on the arguments of a call, as data."""

    @property
    def takes(self) -> int | None:
        """The number of inputs that the fallback takes, the first ones; None for all."""
        ...

    def check(self) -> Check:
        """Return a function that checks arguments."""
        ...


@dataclass(frozen=True)
class StorageOffsets:
    """Require the storage offsets, by index of the input, that the graph was traced with."""

    offsets: dict[int, int]
    takes: int | None = None

    def check(self) -> Check:
        """See `Guard.check`."""
        offsets = tuple(self.offsets.items())

        def check(args: list[Any]) -> str:
            for index, offset in offsets:
                if args[index].storage_offset() != offset:
                    now = args[index].storage_offset()
                    return (
                        f"input {index} begins at {now} of its storage, and at {offset} when it was traced; "
                        "as_strided counts from the start of the storage, so the ops run one by one"
                    )
            return ""

        return check


@dataclass(frozen=True)
class SizeConditions:
    """Require that conditions on the sizes of the graph hold."""

    conditions: tuple[Any, ...]
    binding: Binding
    takes: int | None = None

    def check(self) -> Check:
        """See `Guard.check`."""
        known: dict[tuple[Any, ...], str] = {}

        def check(args: list[Any]) -> str:
            values = self.binding.reader(args).values
            key = tuple(values.values())
            if key not in known:
                if len(known) >= MAX_REMEMBERED:  # numbers that the user passes may be new in every call
                    known.clear()
                holds = all(condition.xreplace(values) == True for condition in self.conditions)  # noqa: E712 - sympy's
                known[key] = "" if holds else "the sizes do not meet the conditions of the program"
            return known[key]

        return check


class GuardedProgram(ProgramWrapper):
    """Run a program where its guard holds, and the fallback where it does not. The fallback is loaded when it
    is first needed.
    """

    def __init__(
        self,
        program: Program,
        guard: Guard,
        fallback: Code,
        degradations: Diagnostics | None = None,
    ) -> None:
        self.program = program
        self._given = (guard, fallback, degradations)
        self._check = guard.check()
        self._fallback: Program | None = None

    @property
    def code(self) -> Code:
        return WrapperCode(GuardedProgram, code_of(self.program), self._given)

    @property
    def standalone(self) -> None:
        """Return None: a module of its own would not check the guard."""

    def __call__(self, args: list[Any]) -> list[Any]:
        failure = self._check(args)
        if not failure:
            return self.program(args)
        guard, code, degradations = self._given
        if self._fallback is None:
            if degradations is not None:
                degradations.add(failure, here=True)
            self._fallback = code.load()
        return self._fallback(args if guard.takes is None else args[: guard.takes])


class AssertingProgram(ProgramWrapper):
    """Run a program whose code asserts the layouts that fake kernels predict. After the first failed
    assertion, run the fallback instead, for that call too. Only for graphs that write nothing.

    This is not a `GuardedProgram`: only the running program finds out whether the layouts are right.
    """

    def __init__(self, program: Program, fallback: Code, degradations: Diagnostics, at: str) -> None:
        self.program = program
        self._given = (fallback, degradations, at)
        self._fallback: Program | None = None

    @property
    def code(self) -> Code:
        return WrapperCode(AssertingProgram, code_of(self.program), self._given)

    def __call__(self, args: list[Any]) -> list[Any]:
        if self._fallback is not None:
            return self._fallback(args)
        kept = list(args)
        try:
            return self.program(args)
        except AssertionError as error:
            if not str(error).startswith(LAYOUT_ASSERTION):
                raise
            code, degradations, at = self._given
            degradations.add(
                f"ops run one by one: one has another layout than its fake says ({first_line(error)})",
                at=at,
                next="let register_fake tell the strides that the op returns",
            )
            self._fallback = code.load()
            return self._fallback(kept)
