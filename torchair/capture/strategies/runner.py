"""The runner: a program behind one call, run in one of several ways, and watched by those who asked."""

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
    """`runner(args)` is boxed, `runner.run(*args)` is not. `strategy` is how calls are served: directly, with
    a program per key, counted, or replayed.
    """

    _boxed_call = True  # what AOTAutograd asks for

    def __init__(self, strategy: Direct) -> None:
        self.strategy = strategy
        # What conversion did to the graph; the backend puts its report here.
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
        """The quickest callable for AOTAutograd."""
        return self if self._watching else self.strategy.boxed

    def fast_path(self, written: bytes) -> FastPath | None:
        """A quick way for a call that is like the one before; it gives None where the call is not. It raises
        the versions of the inputs with these packed indices.
        """
        return None if self._watching else self.strategy.fast_path(written)

    @cached_property
    def plain_fast_path(self) -> FastPath | None:
        """The quick way of `fast_path`, where nobody watches the versions of what is written."""
        return self.fast_path(b"")

    def run(self, *args: Any) -> list[Any]:
        """Call with separate arguments."""
        if self.plain_fast_path is not None and (outputs := self.plain_fast_path(args)) is not None:
            return outputs
        return self(list(args))

    def report(self) -> Report:
        """What happened so far."""
        return self.strategy.report()

    @property
    def program(self) -> Program:
        """What runs, or is recorded."""
        return self.strategy.program

    @property
    def awaited(self) -> PendingProgram | None:
        """A better program for all calls that is on its way; None where there is none, or it serves."""
        return self.strategy.awaited

    @property
    def why_not(self) -> str | None:
        """The reason why the program runs directly; None where it is recorded."""
        return self.strategy.why_not

    @property
    def parts(self) -> tuple[Runner, ...]:
        """The pieces that a graph is recorded in, where it is split."""
        return self.strategy.parts

    @property
    def degradations(self) -> Diagnostics:
        """What was less than promised."""
        return self.strategy.degradations
