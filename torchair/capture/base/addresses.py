"""Addresses of the inputs that a recording uses in place: which ones are compared before a replay, and why a
changed address causes a new recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from torchair.capture.base.inputs import InputInfo, Role


class RecaptureReason(Enum):
    """Why a key is recorded again, and its name in `torch._dynamo.utils.counters["npugraph_ex"]`."""

    FORCED = "recapture_due_to_force_recapture"
    MUTATED = "recapture_due_to_mutated_input_change"
    PARAMETER = "recapture_due_to_parameter_change"
    PLAIN = "recapture_due_to_retained_input"
    COPIES = "recapture_due_to_refused_copy"


def checked_inputs(inputs: InputInfo, *, frozen_parameter: bool, skip_validation: bool) -> list[int]:
    """Return the indices of the inputs whose addresses are compared before every replay."""
    if skip_validation:
        return inputs.having(Role.PASSED)
    roles = (Role.MUTATED, Role.PASSED)
    return inputs.having(*roles) if frozen_parameter else inputs.having(*roles, Role.PARAMETER)


def cause_of(inputs: InputInfo, moved: Sequence[int]) -> RecaptureReason:
    """Return the cause of a new recording. A moved mutated input outweighs a moved parameter, because it is
    more likely to move again.
    """
    return (
        RecaptureReason.MUTATED
        if any(inputs.roles[i] is Role.MUTATED for i in moved)
        else RecaptureReason.PARAMETER
    )


def format_moved(inputs: InputInfo, moved: Sequence[int]) -> str:
    """Name the first three inputs that moved, with their roles."""
    named = ", ".join(f"{inputs.roles[i].value} input {inputs.title(i)}" for i in moved[:3])
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    return f"{named}{more} moved"
