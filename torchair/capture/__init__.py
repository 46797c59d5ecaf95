"""Program -> Runner: record once and replay, or run directly and say why."""

from __future__ import annotations

import torch

from torchair.capture.device import DEVICES, Device, device_row
from torchair.capture.ledger import Cause
from torchair.capture.pending import Pending, Program, Specialist
from torchair.capture.policy import Policy, why_not
from torchair.capture.report import Report
from torchair.capture.roles import Inputs, Role, inputs_of
from torchair.capture.runner import BoundRunner, ReplayRunner, Runner, SpecialRunner
from torchair.core.log import capture_logger as logger

__all__ = [
    "DEVICES",
    "Cause",
    "Device",
    "Inputs",
    "Pending",
    "Policy",
    "Program",
    "Report",
    "Role",
    "Runner",
    "Specialist",
    "capture",
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
) -> Runner:
    """Put a program behind a runner. `row` says what the device offers; by default its row of `DEVICES`.
    `specialist` makes better programs for single keys while this one serves.
    """
    row = row or device_row(device)
    reason = why_not(inputs, policy, row)
    if reason is None:
        return ReplayRunner(program, inputs, policy, device, name, row, specialist)
    if policy.capture and not policy.backward:
        if row.graph is None:
            return BoundRunner(program, inputs, policy, device, name, row, specialist)
        logger.warning_once("%s is not recorded and runs directly: %s", name, reason)
    if specialist is not None:
        return SpecialRunner(program, inputs, policy, device, name, reason, specialist)
    return Runner(program, inputs, policy, device, name, reason)
