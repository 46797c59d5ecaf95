"""The runner: calls a program with one of several strategies, and notifies observers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from torchair.capture.base.compiled_program import Observer
from torchair.capture.base.pending_program import PendingProgram
from torchair.capture.base.stats import Report
from torchair.capture.strategies.direct import Direct, FastPath
from torchair.core.diagnostics import Diagnostics
from torchair.core.program import Program


class Runner:
    """A callable around a compiled program. `runner(args)` takes a list that it may clear;
    `runner.run(*args)` takes separate arguments.

    Args:
        strategy: how calls are served: directly, with one program per key, counted, or replayed.
    """

    _boxed_call = True  # AOTAutograd reads this attribute

    def __init__(self, strategy: Direct) -> None:
        self.strategy = strategy
        # Report of the conversion; the backend sets it.
        self.conversion: Any = None

    def __call__(self, args: list[Any]) -> list[Any]:
        for observer in self._watching:
            observer.called(args)
        outputs = self.strategy(args)
        for observer in self._watching:
            observer.returned(outputs)
        return outputs

    @cached_property
    def _watching(self) -> tuple[Observer, ...]:
        return tuple(o for o in self.strategy.compiled.observers if o.watches_calls)

    @property
    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        """The fastest callable for AOTAutograd."""
        return self if self._watching else self.strategy.boxed

    def fast_path(self, written: bytes) -> FastPath | None:
        """Return a callable for calls that repeat the previous one; it returns None for other calls. It bumps
        the versions of the inputs with these packed indices.
        """
        return None if self._watching else self.strategy.fast_path(written)

    @cached_property
    def plain_fast_path(self) -> FastPath | None:
        """The result of `fast_path` if no version counters of mutated inputs are needed."""
        return self.fast_path(b"")

    def run(self, *args: Any) -> list[Any]:
        """Call with separate arguments."""
        if self.plain_fast_path is not None and (outputs := self.plain_fast_path(args)) is not None:
            return outputs
        return self(list(args))

    def report(self) -> Report:
        """Return the state of the runner."""
        return self.strategy.report()

    @property
    def program(self) -> Program:
        """The program that runs or is recorded."""
        return self.strategy.program

    @property
    def awaited(self) -> PendingProgram | None:
        """The optimized program for all calls that is not in use yet; None if there is none."""
        return self.strategy.awaited

    @property
    def why_not(self) -> str | None:
        """The reason why the program runs directly; None if it is recorded."""
        return self.strategy.why_not

    @property
    def parts(self) -> tuple[Runner, ...]:
        """The runners of the partitions, if the graph is split."""
        return self.strategy.parts

    @property
    def degradations(self) -> Diagnostics:
        """The degradations of this compilation and its calls."""
        return self.strategy.degradations
