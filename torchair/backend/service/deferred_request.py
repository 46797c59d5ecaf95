"""A compile request for an optimized program as data.

A process that loads the eager program from disk can submit it if no process has built the optimized one yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchair.backend.service.program_cache import ProgramCacheEntry
from torchair.backend.service.request import CompileRequest
from torchair.backend.service.scheduler import CompileBudget, CompileTask, Job, LoadedResult, Subtask
from torchair.capture.base.inputs import KeyPart
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.codegen.base.guarded_program import GuardedProgram, SizeConditions
from torchair.codegen.inductor.device_mapping import DeviceMapping
from torchair.core.diagnostics import Diagnostics
from torchair.core.program import Code, Program
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.symbols import Binding

BY_NAME = "set engine_config.codegen='inductor' to compile it in the first call"
"""The hint of a warning that there is no optimized program."""


def part_of(prepare: Callable[[], CompileRequest], entry: ProgramCacheEntry | None) -> Subtask:
    """Return a subtask whose result is cached in `entry`, if there is one."""
    return Subtask(
        prepare,
        find=lambda: None if entry is None else entry.get(),
        keep=lambda result: None if entry is None else entry.put(result),
    )


def tell(degradations: Diagnostics) -> Callable[[str], None]:
    """Return a callback that warns that there is no optimized program."""
    return lambda why: degradations.add(f"the optimized program could not be {why}", next=BY_NAME, here=True)


@dataclass(frozen=True)
class DeferredRequest:
    """The request of a graph that is one compile unit, wrapped only in its `LayoutEnforcer`."""

    order: CompileRequest
    facts: Mapping[str, str]
    """Everything the program depends on: the parts of its cache key."""
    most_bytes: int
    ground: DeviceMapping
    binding: Binding
    limits: CompileBudget

    def job(
        self,
        title: str,
        fallback: Code,
        layouts: tuple[OutputLayouts, tuple[KeyPart, ...]],
        degradations: Diagnostics,
    ) -> Job:
        """Create the compile job; `fallback` serves calls whose sizes the program does not support."""
        contract, key = layouts

        def finish(loaded: Sequence[LoadedResult]) -> Program:
            ((bare, result),) = loaded
            program = self.ground.program(bare)
            if result.conditions:
                conditions = SizeConditions(result.conditions, self.binding)
                program = GuardedProgram(program, conditions, fallback)
            return LayoutEnforcer(program, replace(contract, is_eager=False), key, degradations)

        entry = ProgramCacheEntry.of(dict(self.facts), self.most_bytes) if self.most_bytes else None
        task = CompileTask(
            title, [part_of(lambda: self.order, entry)], finish, tell(degradations), self.limits
        )
        job = Job(replace(task, recipe=lambda: self))
        if entry is not None and entry.is_there:
            job.wanted()  # the program is cached, so nothing is compiled
        return job
