"""Run a compiled program: record it once and replay it, or run it directly and report why."""

from __future__ import annotations

from dataclasses import replace

from torchair.capture.base.addresses import RecaptureReason
from torchair.capture.base.call_log import CallLog, call_logger
from torchair.capture.base.compiled_program import CompiledProgram, Observer
from torchair.capture.base.inputs import InputInfo, Role, inputs_of
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.capture.base.pending_program import PendingProgram, Specialist, SwappableProgram, lost_in_pieces
from torchair.capture.base.policy import Policy, skip_reason
from torchair.capture.base.stats import Report
from torchair.capture.recording.memory_pool import LaunchOrder
from torchair.capture.recording.recording import CannotRecord
from torchair.capture.strategies.chain import PartitionedProgram
from torchair.capture.strategies.direct import CountedDirect, Direct, SpecializedByKey
from torchair.capture.strategies.replay import Replay, RunnerOptions
from torchair.capture.strategies.runner import Runner
from torchair.core.log import capture_logger as logger

__all__ = [
    "CannotRecord",
    "CompiledProgram",
    "InputInfo",
    "LaunchOrder",
    "Observer",
    "PartitionedProgram",
    "PendingProgram",
    "Policy",
    "RecaptureReason",
    "Report",
    "Role",
    "Runner",
    "RunnerOptions",
    "Specialist",
    "capture",
    "inputs_of",
    "skip_reason",
]

ALONE = RunnerOptions()


def capture(compiled: CompiledProgram, options: RunnerOptions = ALONE) -> Runner:
    """Return a runner that records and replays this program, or runs it directly.

    Args:
        compiled: the program with the facts about its graph.
        options: callbacks and shared state of the recordings.

    Returns:
        A `Runner`. Its `why_not` is the reason if the program is not recorded.
    """
    degradations, log = compiled.degradations, call_logger()
    if compiled.contract is not None:
        program = LayoutEnforcer(compiled.program, compiled.contract, compiled.inputs.key, degradations)
        compiled = replace(compiled, program=program)
    if compiled.policy.statistics and log is None:
        degradations.add(
            f"record_statistics_debug_info has no effect: the log {logger.name!r} was not at level DEBUG "
            "when the graph was compiled",
            next="set the level to DEBUG before the first call",
        )
    if log is not None:
        compiled = replace(compiled, observers=(*compiled.observers, CallLog(compiled, log)))
    return Runner(_strategy(compiled, options))


def _strategy(compiled: CompiledProgram, options: RunnerOptions) -> Direct:
    """Return the best strategy that the device and the policy allow; report why the graph is not recorded."""
    policy, row, specialist = compiled.policy, compiled.row, options.specialist
    if options.parts is not None:
        return _partitioned(compiled, options.parts, specialist)
    reason = skip_reason(compiled.inputs, policy, row)
    if reason is None:
        return Replay(compiled, options)
    if options.successor is not None:
        compiled = replace(compiled, program=SwappableProgram(compiled.program, options.successor))
    if policy.capture:
        if not row.has_graphs and policy.counts:
            return CountedDirect(compiled, specialist)
        if row.has_graphs:
            what = f"a graph is not recorded, so its ops run one by one: {reason}"
            compiled.degradations.add(what, here=True)
    return Direct(compiled, reason) if specialist is None else SpecializedByKey(compiled, reason, specialist)


def _partitioned(
    compiled: CompiledProgram, parts: tuple[Runner, ...], specialist: Specialist | None
) -> Direct:
    if specialist is not None:
        compiled.degradations.add(lost_in_pieces(specialist))
    how = "recorded in 1 partition" if len(parts) == 1 else f"recorded in {len(parts)} partitions"
    if not parts:
        how = "all of its ops need the CPU"
        what = f"a graph is not recorded, so its ops run one by one: {how}"
        compiled.degradations.add(what, here=True)
    return Direct(compiled, how, parts)
