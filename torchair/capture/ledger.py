"""The ledger: every caller-owned address that is baked into a recording, with the name of its tensor."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch

from torchair.capture.roles import Inputs, Role

_address = torch.Tensor.data_ptr


class Cause(Enum):
    """Why a key is recorded again, and how `torch._dynamo.utils.counters["npugraph_ex"]` names it."""

    FORCED = "recapture_due_to_force_recapture"
    MUTATED = "recapture_due_to_mutated_input_change"
    PARAMETER = "recapture_due_to_parameter_change"
    PLAIN = "recapture_due_to_retained_input"


class Ledger:
    """Addresses of the inputs a recording uses in place. `watched` is decided once per graph."""

    def __init__(self, watched: Sequence[int], args: Sequence[Any]) -> None:
        self.watched = watched
        self.addresses = self.read(args)

    def read(self, args: Sequence[Any]) -> list[int]:
        """The addresses of the watched inputs in this call."""
        return [_address(args[index]) for index in self.watched]

    def matches(self, args: Sequence[Any]) -> bool:
        """Is every watched input where the recording expects it?"""
        return [_address(args[index]) for index in self.watched] == self.addresses

    def moved(self, args: Sequence[Any]) -> list[int]:
        """Indices of the inputs that are somewhere else now."""
        now = self.read(args)
        return [i for i, old, new in zip(self.watched, self.addresses, now, strict=True) if old != new]


def watched_inputs(inputs: Inputs, *, frozen_parameter: bool, skip_validation: bool) -> list[int]:
    """Which inputs have their address compared before every replay."""
    if skip_validation:
        return []
    return inputs.having(Role.MUTATED) if frozen_parameter else inputs.having(Role.MUTATED, Role.PARAMETER)


def cause_of(inputs: Inputs, moved: Sequence[int]) -> Cause:
    """A moved mutated input outweighs a moved parameter: it is the one that moves again."""
    return Cause.MUTATED if any(inputs.roles[i] is Role.MUTATED for i in moved) else Cause.PARAMETER
