"""A program wrapper that enforces the output layouts its graph requires.

On the first call of each key (sizes of the call) all results are checked. Layouts that differ are reported
and corrected, in this call and in all later calls of the key: strides by a copy, an alias by a view of its
input.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from torchair.capture.base.inputs import KeyPart
from torchair.capture.base.key import key_function
from torchair.core.diagnostics import Diagnostics
from torchair.core.program import Program, ProgramWrapper
from torchair.fxgraph.conj_neg import marked_arguments, unmarked
from torchair.fxgraph.layout_check import OutputLayouts, Sameness, ViewFixup, looked_at

IGNORES_CONJ_NEG = ("inductor", "native")  # programs that ignore the conjugate and negative bits
REMEMBERED = 4096  # keys whose check results are cached
CHECK_EVERY_CALL = False
"""Check the results of every call, not only of the first call of a key. Tests set this."""


UNCHANGED = Sameness()


@dataclass(frozen=True)
class Fixups:
    """Corrections that are applied to the results of each call of one key."""

    marked: tuple[int, ...] = ()  # arguments with a conjugate or negative bit
    looks: tuple[ViewFixup, ...] = ()
    wrong: tuple[int, ...] = ()
    sameness: Sameness = UNCHANGED


NO_FIXUPS = Fixups()


class LayoutEnforcer(ProgramWrapper):
    """Run the program; correct results whose layout differs from the required one."""

    def __init__(
        self,
        program: Program,
        contract: OutputLayouts,
        key: tuple[KeyPart, ...] = (),
        degradations: Diagnostics | None = None,
    ) -> None:
        self.program = program
        self.contract = contract
        self.key = key
        self._key_of = key_function(key)
        self._degradations = degradations or Diagnostics()
        # The contract adds results that the program does not compute.
        self._adds_results = bool(contract.left_out or contract.marked)
        self._known: dict[Hashable, Fixups] = {}

    @property
    def standalone(self) -> Any:
        """The function that writes the program as a standalone module, or None."""
        return None if self._adds_results else super().standalone

    def __call__(self, args: list[Any]) -> list[Any]:
        key = self._key_of(args)
        fixups = self._known.get(key)
        if fixups is None or CHECK_EVERY_CALL:
            return self._check(key, args)
        if fixups is NO_FIXUPS and not self._adds_results:
            return self.program(args)
        needs_args = fixups.wrong or self.contract.left_out
        before = self.contract.before(args, looks=False) if needs_args else None
        outputs = looked_at(self._run(args, fixups.marked), fixups.looks)
        if before is not None:
            outputs = self.contract.mend(before, self.contract.filled(before, outputs), fixups.wrong)
        outputs = self._marked(outputs)
        return fixups.sameness.of(outputs) if fixups.sameness else outputs

    def _check(self, key: Hashable, args: list[Any]) -> list[Any]:
        before = self.contract.before(args, looks=True)
        marked = marked_arguments(args) if self.kind in IGNORES_CONJ_NEG else ()
        outputs = self.contract.filled(before, self._run(args, marked))
        looks = self.contract.looks(before, outputs)
        outputs = looked_at(outputs, looks) if looks else outputs
        faults = self.contract.faults(before, outputs)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        if faults:
            self._report(faults)  # raises in strict mode, in every call
            outputs = self.contract.mend(before, outputs, tuple(faults))
        outputs = self._marked(outputs)
        sameness = self.contract.sameness(outputs)
        # Layouts that vary within one key, because they depend on data, are checked in every call.
        if self.contract.is_static:
            fixups = Fixups(marked, looks, tuple(faults), sameness)
            self._known[key] = NO_FIXUPS if fixups == NO_FIXUPS else fixups
        return sameness.of(outputs) if sameness else outputs

    def _run(self, args: list[Any], marked: tuple[int, ...]) -> list[Any]:
        """Run the program. If it ignores conjugate and negative bits, pass resolved copies and write results
        back.
        """
        if not marked:
            return self.program(args)
        plain = [(args[index], unmarked(args[index])) for index in marked]
        for index, (_, copy) in zip(marked, plain, strict=True):
            args[index] = copy
        outputs = self.program(args)
        for index, (argument, copy) in zip(marked, plain, strict=True):
            if index in self.contract.written:
                argument.copy_(copy)
        return outputs

    def _marked(self, outputs: list[Any]) -> list[Any]:
        for place, mark in self.contract.marked:
            outputs[place] = mark(outputs[place])
        return outputs

    def _report(self, faults: dict[int, str]) -> None:
        place, what = next(iter(faults.items()))
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        what = f"output {place} {what}{more}; a copy or a view corrects it on every call"
        self._degradations.add(what, here=True)
