"""The ledger: every caller-owned address that is baked into a recording, with the name of its tensor."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from torchair.capture.roles import Inputs, Role
from torchair.core.torch_private import same_addresses


class Cause(Enum):
    """Why a key is recorded again, and how `torch._dynamo.utils.counters["npugraph_ex"]` names it."""

    FORCED = "recapture_due_to_force_recapture"
    MUTATED = "recapture_due_to_mutated_input_change"
    PARAMETER = "recapture_due_to_parameter_change"
    PLAIN = "recapture_due_to_retained_input"


class Ledger:
    """Addresses of the inputs a recording uses in place. `watched` is decided once per graph."""

    def __init__(self, watched: list[int], args: Sequence[Any]) -> None:
        self._watched = watched
        self._addresses: list[int | None] = [None] * len(args)
        for index in watched:
            self._addresses[index] = args[index].data_ptr()

    def read(self, args: Sequence[Any]) -> list[int]:
        """The addresses of the watched inputs in this call."""
        return [args[index].data_ptr() for index in self._watched]

    def matches(self, args: list[Any]) -> bool:
        """Is every watched input where the recording expects it?"""
        return same_addresses(args, self._addresses, self._watched)

    def moved(self, args: Sequence[Any]) -> list[int]:
        """Indices of the inputs that are somewhere else now."""
        return [i for i in self._watched if args[i].data_ptr() != self._addresses[i]]


def watched_inputs(inputs: Inputs, *, frozen_parameter: bool, skip_validation: bool) -> list[int]:
    """Which inputs have their address compared before every replay."""
    if skip_validation:
        return []
    return inputs.having(Role.MUTATED) if frozen_parameter else inputs.having(Role.MUTATED, Role.PARAMETER)


def cause_of(inputs: Inputs, moved: Sequence[int]) -> Cause:
    """A moved mutated input outweighs a moved parameter: it is the one that moves again."""
    return Cause.MUTATED if any(inputs.roles[i] is Role.MUTATED for i in moved) else Cause.PARAMETER
