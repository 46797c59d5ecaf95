"""A program held to the layouts that its graph promised.

On the first call of each key (sizes of the call) every result is looked at. What is not as promised is
reported and mended, and so in all calls of that key: strides by a copy, an alias by a view of its input.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torchair.capture.pending import Program
from torchair.core.errors import DegradedWarning
from torchair.core.log import logger
from torchair.fxgraph.layout import Contract

REMEMBERED = 4096  # keys of which it is known whether results are as promised
EVERY_CALL = False
"""Look at the results of every call, not only of the first of a key: for tests."""


class Promised:
    """The program; results that it does not lay out as promised are mended."""

    _boxed_call = True

    def __init__(
        self, program: Program, contract: Contract, key_of: Callable[[Sequence[Any]], Hashable], name: str
    ) -> None:
        self.program = program
        self.kind = program.kind
        self._contract = contract
        self._key_of = key_of
        self._name = name
        self._wrong: dict[Hashable, tuple[int, ...]] = {}

    @property
    def source(self) -> str:
        return self.program.source

    @property
    def standalone(self) -> Any:
        """Who writes it as a module of its own, if anybody can."""
        return getattr(self.program, "standalone", None)

    def __call__(self, args: list[Any]) -> list[Any]:
        key = self._key_of(args)
        wrong = self._wrong.get(key)
        if wrong is None or EVERY_CALL:
            return self._look(key, args)
        return self.program(args) if not wrong else self._mend(wrong, args)

    def _look(self, key: Hashable, args: list[Any]) -> list[Any]:
        before = self._contract.before(args)
        outputs = self.program(args)
        faults = self._contract.faults(before, outputs)
        if len(self._wrong) >= REMEMBERED:
            self._wrong.clear()
        self._wrong[key] = tuple(faults)
        if not faults:
            return outputs
        place, what = next(iter(faults.items()))
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        text = (
            f"{self._name}: output {place} {what}{more}; it is put right on every call, by a copy or a view"
        )
        logger.warning(text)
        warnings.warn(text, DegradedWarning, stacklevel=2)
        return self._contract.mend(before, outputs, tuple(faults))

    def _mend(self, wrong: tuple[int, ...], args: list[Any]) -> list[Any]:
        before = self._contract.before(args)
        return self._contract.mend(before, self.program(args), wrong)
