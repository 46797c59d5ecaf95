"""How a better program is ordered, as data: for processes that take the eager one from disk before anybody
has built the other.
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

BY_NAME = "engine_config.codegen='inductor' builds it in the first call"
"""What to do where there is no better program."""


def part_of(prepare: Callable[[], CompileRequest], kept: ProgramCacheEntry | None) -> Subtask:
    """An order whose program is kept, if there is a place."""
    return Subtask(
        prepare,
        find=lambda: None if kept is None else kept.get(),
        keep=lambda made: None if kept is None else kept.put(made),
    )


def tell(degradations: Diagnostics) -> Callable[[str], None]:
    """Says where there will be no better program."""
    return lambda why: degradations.add(f"a better program is not {why}", next=BY_NAME, here=True)


@dataclass(frozen=True)
class DeferredRequest:
    """Of a graph that is one order, behind its contract and nothing else."""

    order: CompileRequest
    facts: Mapping[str, str]
    """All that the program depends on: by these it is kept."""
    most_bytes: int
    ground: DeviceMapping
    binding: Binding
    limits: CompileBudget

    def job(
        self, title: str, other: Code, promise: tuple[OutputLayouts, tuple[KeyPart, ...]], told: Diagnostics
    ) -> Job:
        """Have it built; `other` serves what it does not fit."""
        contract, key = promise

        def finish(built: Sequence[LoadedResult]) -> Program:
            ((bare, made),) = built
            program = self.ground.program(bare)
            if made.conditions:
                program = GuardedProgram(program, SizeConditions(made.conditions, self.binding), other)
            return LayoutEnforcer(program, replace(contract, is_eager=False), key, told)

        kept = ProgramCacheEntry.of(dict(self.facts), self.most_bytes) if self.most_bytes else None
        task = CompileTask(title, [part_of(lambda: self.order, kept)], finish, tell(told), self.limits)
        job = Job(replace(task, recipe=lambda: self))
        if kept is not None and kept.is_there:
            job.wanted()  # there is nothing to build
        return job
