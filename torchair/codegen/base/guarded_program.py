"""A program that was compiled for some sizes of a graph, and another for the rest."""

from __future__ import annotations

from typing import Any

from torchair.codegen.base.programs import WrapperCode
from torchair.core.program import Code, Program, ProgramWrapper, code_of
from torchair.fxgraph.symbols import Binding

REMEMBERED = 4096
"""Sizes of which it is known whether they fit."""


class Fitting(ProgramWrapper):
    """A program that is right where conditions on sizes hold; another, which is loaded when it is needed,
    serves where they do not.
    """

    def __init__(self, program: Program, other: Code, conditions: tuple[Any, ...], binding: Binding) -> None:
        self.program = program
        self._given = (other, conditions, binding)
        self._code, self._conditions, self._binding = other, conditions, binding
        self._other: Program | None = None
        self._known: dict[tuple[Any, ...], bool] = {}

    @property
    def code(self) -> Code:
        return WrapperCode(Fitting, code_of(self.program), self._given)

    @property
    def standalone(self) -> None:
        """A module of its own would not look at sizes."""

    def __call__(self, args: list[Any]) -> list[Any]:
        values = self._binding.reader(args).values
        key = tuple(values.values())
        fits = self._known.get(key)
        if fits is None:
            if len(self._known) >= REMEMBERED:  # numbers of the user's may be new in every call
                self._known.clear()
            fits = self._known[key] = all(c.xreplace(values) == True for c in self._conditions)  # noqa: E712 - sympy's
        if fits:
            return self.program(args)
        if self._other is None:
            self._other = self._code.load()
        return self._other(args)
