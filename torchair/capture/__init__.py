"""Program -> Runner: record once and replay, or run directly and say why."""

from __future__ import annotations

import torch

from torchair.capture.call_log import (
    Telling,
    TellingBoundRunner,
    TellingReplayRunner,
    TellingSpecialRunner,
    is_telling,
)
from torchair.capture.device import DEVICES, Device, device_row
from torchair.capture.key import key_function
from torchair.capture.ledger import Cause
from torchair.capture.pending import Pending, Program, Specialist
from torchair.capture.policy import Policy, why_not
from torchair.capture.promised import Promised
from torchair.capture.replay import Recorded, ReplayRunner
from torchair.capture.report import Report
from torchair.capture.roles import Inputs, Role, inputs_of
from torchair.capture.runner import BoundRunner, Runner, SpecialRunner
from torchair.core.log import capture_logger as logger
from torchair.fxgraph.contract import Contract

__all__ = [
    "DEVICES",
    "Cause",
    "Device",
    "Inputs",
    "Pending",
    "Policy",
    "Program",
    "Recorded",
    "Report",
    "Role",
    "Runner",
    "Specialist",
    "capture",
    "device_row",
    "inputs_of",
    "why_not",
]


def capture(
    program: Program,
    inputs: Inputs,
    policy: Policy,
    device: torch.device,
    name: str,
    *,
    row: Device | None = None,
    specialist: Specialist | None = None,
    recorded: Recorded | None = None,
    contract: Contract | None = None,
) -> Runner:
    """Put a program behind a runner. `row` says what the device offers; by default its row of `DEVICES`.
    `specialist` makes better programs for single keys while this one serves; `recorded` sees device graphs;
    `contract` is what the graph promised of its results.
    """
    row = row or device_row(device)
    if contract is not None:
        program = Promised(program, contract, key_function(inputs.key), name)
    telling = is_telling()
    if policy.statistics and not telling:
        logger.warning_once(
            "record_statistics_debug_info has no effect: the log %r was not at DEBUG when the graph was "
            "compiled",
            logger.name,
        )
    reason = why_not(inputs, policy, row)
    if reason is None:
        made = TellingReplayRunner if telling else ReplayRunner
        return made(program, inputs, policy, device, name, row, specialist, recorded)
    if policy.capture and not policy.backward:
        if row.graph is None:
            bound = TellingBoundRunner if telling else BoundRunner
            return bound(program, inputs, policy, device, name, row, specialist)
        logger.warning_once("%s is not recorded and runs directly: %s", name, reason)
    if specialist is not None:
        special = TellingSpecialRunner if telling else SpecialRunner
        return special(program, inputs, policy, device, name, reason, specialist)
    return (Telling if telling else Runner)(program, inputs, policy, device, name, reason)
