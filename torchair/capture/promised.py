"""A program held to the layouts that its graph promised.

On the first call of each key (sizes of the call) every result is looked at. What is not as promised is
reported and mended, and so in all calls of that key: strides by a copy, an alias by a view of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torchair.capture.pending import Program
from torchair.core.log import degraded
from torchair.fxgraph.layout import Contract, Reshaped, reshaped

REMEMBERED = 4096  # keys of which it is known whether results are as promised
EVERY_CALL = False
"""Look at the results of every call, not only of the first of a key: for tests."""


@dataclass(frozen=True)
class Mends:
    """What is done to the results of each call of one key."""

    unit_strides: tuple[Reshaped, ...] = ()
    wrong: tuple[int, ...] = ()


NOTHING = Mends()


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
        self._has_gaps = bool(contract.left_out)
        self._known: dict[Hashable, Mends] = {}

    @property
    def source(self) -> str:
        return self.program.source

    @property
    def standalone(self) -> Any:
        """Who writes it as a module of its own, if anybody can."""
        return getattr(self.program, "standalone", None)

    def __call__(self, args: list[Any]) -> list[Any]:
        key = self._key_of(args)
        mends = self._known.get(key)
        if mends is None or EVERY_CALL:
            return self._look(key, args)
        if mends is NOTHING and not self._has_gaps:
            return self.program(args)
        before = self._contract.before(args, looks=False) if mends.wrong or self._has_gaps else None
        outputs = reshaped(self.program(args), mends.unit_strides)
        if before is None:
            return outputs
        return self._contract.mend(before, self._contract.filled(before, outputs), mends.wrong)

    def _look(self, key: Hashable, args: list[Any]) -> list[Any]:
        before = self._contract.before(args, looks=True)
        outputs = self._contract.filled(before, self.program(args))
        unit_strides = self._contract.unit_strides(before, outputs)
        outputs = reshaped(outputs, unit_strides) if unit_strides else outputs
        faults = self._contract.faults(before, outputs)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        # What varies from call to call of one key, because the data decides it, is looked at in every call.
        if not unit_strides or self._contract.is_static:
            self._known[key] = Mends(unit_strides, tuple(faults)) if unit_strides or faults else NOTHING
        if not faults:
            return outputs
        self._report(faults)
        return self._contract.mend(before, outputs, tuple(faults))

    def _report(self, faults: dict[int, str]) -> None:
        place, what = next(iter(faults.items()))
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        text = f"{self._name}: output {place} {what}{more}; a copy or a view puts it right on every call"
        degraded(text)
