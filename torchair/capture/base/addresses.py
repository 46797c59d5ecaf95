"""The ledger of a recording is the addresses of the inputs it uses in place: which inputs those are, and what
it means when one has moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from torchair.capture.base.inputs import InputInfo, Role


class RecaptureReason(Enum):
    """Why a key is recorded again, and how `torch._dynamo.utils.counters["npugraph_ex"]` names it."""

    FORCED = "recapture_due_to_force_recapture"
    MUTATED = "recapture_due_to_mutated_input_change"
    PARAMETER = "recapture_due_to_parameter_change"
    PLAIN = "recapture_due_to_retained_input"
    COPIES = "recapture_due_to_refused_copy"


def watched_inputs(inputs: InputInfo, *, frozen_parameter: bool, skip_validation: bool) -> list[int]:
    """Which inputs have their address compared before every replay."""
    if skip_validation:
        return inputs.having(Role.PASSED)
    roles = (Role.MUTATED, Role.PASSED)
    return inputs.having(*roles) if frozen_parameter else inputs.having(*roles, Role.PARAMETER)


def cause_of(inputs: InputInfo, moved: Sequence[int]) -> RecaptureReason:
    """A moved mutated input outweighs a moved parameter: it is the one that moves again."""
    return (
        RecaptureReason.MUTATED
        if any(inputs.roles[i] is Role.MUTATED for i in moved)
        else RecaptureReason.PARAMETER
    )


def moved_text(inputs: InputInfo, moved: Sequence[int]) -> str:
    """The first inputs that moved, by role and name."""
    named = ", ".join(f"{inputs.roles[i].value} input {inputs.title(i)}" for i in moved[:3])
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    return f"{named}{more} moved"
