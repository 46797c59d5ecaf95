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
from torchair.capture.chain import Chain
from torchair.capture.key import key_function
from torchair.capture.ledger import Cause
from torchair.capture.pending import Pending, Specialist
from torchair.capture.policy import Policy, why_not
from torchair.capture.pool import Turns
from torchair.capture.promised import Promised
from torchair.capture.record import CannotRecord
from torchair.capture.replay import NO_STATIC_KERNELS, Recorded, ReplayRunner, Split
from torchair.capture.report import Report
from torchair.capture.roles import Inputs, Role, inputs_of
from torchair.capture.runner import BoundRunner, Runner, SpecialRunner
from torchair.core.degraded import Degradations
from torchair.core.log import capture_logger as logger
from torchair.core.program import Program
from torchair.devices import Device, device_row
from torchair.fxgraph.contract import Contract

__all__ = [
    "CannotRecord",
    "Cause",
    "Chain",
    "Inputs",
    "Pending",
    "Policy",
    "Recorded",
    "Report",
    "Role",
    "Runner",
    "Specialist",
    "Split",
    "Turns",
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
    recorded: Recorded | None = None,
    contract: Contract | None = None,
    split: Split | None = None,
    turns: Turns | None = None,
    parts: tuple[Runner, ...] | None = None,
    degradations: Degradations | None = None,
) -> Runner:
    """Put a program behind a runner. `row` says what the device offers; by default its row of `DEVICES`.
    `specialist` makes better programs for single keys while this one serves; `recorded` sees device graphs;
    `contract` is what the graph promised of its results; `split` takes over where an op breaks a recording;
    recordings with the same `turns` never run side by side;
    `parts` are runners inside the program, which record; what is less than promised is told to
    `degradations`.
    """
    row = row or device_row(device)
    degradations = degradations or Degradations()
    if contract is not None:
        program = Promised(program, contract, key_function(inputs.key), degradations)
    telling = is_telling()
    if policy.statistics and not telling:
        degradations.add(
            f"record_statistics_debug_info has no effect: the log {logger.name!r} was not at DEBUG when the "
            "graph was compiled"
        )
    if parts is not None:
        if specialist is not None:
            degradations.add(NO_STATIC_KERNELS)
        how = "recorded in 1 piece" if len(parts) == 1 else f"recorded in {len(parts)} pieces"
        if not parts:
            how = "all of its ops need the host"
            degradations.add(f"a graph is not recorded, its ops run one by one: {how}", here=True)
        plain = Telling if telling else Runner
        runner = plain(program, inputs, policy, device, name, how, degradations=degradations)
        runner.parts = parts
        return runner
    reason = why_not(inputs, policy, row)
    if reason is None:
        made = TellingReplayRunner if telling else ReplayRunner
        return made(
            program,
            inputs,
            policy,
            device,
            name,
            row,
            specialist,
            recorded,
            split=split,
            turns=turns,
            degradations=degradations,
        )
    if policy.capture:
        if not row.has_graphs and policy.counts:
            bound = TellingBoundRunner if telling else BoundRunner
            return bound(program, inputs, policy, device, name, row, specialist, degradations=degradations)
        if row.has_graphs:
            degradations.add(f"a graph is not recorded, its ops run one by one: {reason}", here=True)
    if specialist is not None:
        special = TellingSpecialRunner if telling else SpecialRunner
        return special(program, inputs, policy, device, name, reason, specialist, degradations=degradations)
    return (Telling if telling else Runner)(
        program, inputs, policy, device, name, reason, degradations=degradations
    )
