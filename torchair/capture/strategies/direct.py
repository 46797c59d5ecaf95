"""Strategies that do not record: run directly, with one program per key, or with call counting."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch

from torchair.capture.base.addresses import RecaptureReason, format_moved
from torchair.capture.base.compiled_program import KEY, PARAMETERS, CompiledProgram
from torchair.capture.base.inputs import Role
from torchair.capture.base.key import key_function
from torchair.capture.base.pending_program import PendingProgram, ProgramsByKey, Specialist, SwappableProgram
from torchair.capture.base.stats import InputRow, Report
from torchair.core.program import Program
from torchair.core.torch_private.device.memory import is_profiling

FastPath = Callable[[tuple[Any, ...]], list[Any] | None]
"""Serves a call that repeats the previous one; returns None for other calls."""


class Direct:
    """Run the program directly."""

    _boxed_call = True

    def __init__(self, compiled: CompiledProgram, why_not: str | None, parts: tuple[Any, ...] = ()) -> None:
        self.compiled = compiled
        self.program = compiled.program
        self.why_not = why_not
        self.parts = parts  # runners of the partitions of a graph that is split
        self.inputs, self.policy, self.device = compiled.inputs, compiled.policy, compiled.device
        self.name, self.degradations, self.stats = compiled.name, compiled.degradations, compiled.new_stats()
        # Profilers show direct runs in capture mode as a separate range.
        self._is_eager = self.policy.eager or (self.policy.capture and self.policy.counts)
        self._pack = compiled.timed(PARAMETERS, self._pack_numbers)
        self._key = compiled.timed(KEY, key_function(self.inputs.key))

    @property
    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        """The program itself if nothing is recorded or counted."""
        is_boxed = getattr(self.program, "_boxed_call", False) and not self.inputs.packs
        return self.program if is_boxed and not self._is_eager else self

    def fast_path(self, written: bytes) -> FastPath | None:
        """See `Runner.fast_path`."""
        return None

    @property
    def awaited(self) -> PendingProgram | None:
        """See `Runner.awaited`."""
        return self.program.awaited if isinstance(self.program, SwappableProgram) else None

    def __call__(self, args: list[Any]) -> list[Any]:
        self._pack(args)
        return self._directly(self.program, args)

    def _directly(self, program: Program, args: list[Any]) -> list[Any]:
        """Run without a recording. Profilers show the run as `fx_run_eagerly`."""
        if self._is_eager and is_profiling():
            with torch.profiler.record_function("fx_run_eagerly"):
                return program(args)
        return program(args)

    def _pack_numbers(self, args: list[Any]) -> None:
        """Append the tensors that consist of number arguments."""
        for pack in self.inputs.packs:
            values = [args[value] if kind == "index" else value for kind, value in pack]
            args.append(torch.tensor(values, dtype=torch.int64, device=self.device))

    def report(self) -> Report:
        """Return the state of the runner."""
        return Report(
            self.name,
            self.program.kind,
            str(self.device),
            self.why_not,
            tuple(self.degradations.texts),
            parts=self._report_parts(),
        )

    def _report_parts(self) -> tuple[Report, ...]:
        """Return the reports of the partitions. The report of the whole graph lists their degradations."""
        return tuple(replace(part.report(), degradations=()) for part in self.parts)


class SpecializedByKey(Direct):
    """Run each key directly, with its own program once that is ready. Nothing is recorded."""

    def __init__(self, compiled: CompiledProgram, why_not: str, specialist: Specialist) -> None:
        super().__init__(compiled, why_not)
        self._programs = ProgramsByKey(self.program, specialist)
        self._seen: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        return self

    def __call__(self, args: list[Any]) -> list[Any]:
        self._pack(args)
        key = self._key(args)
        if key not in self._seen:
            if len(self._seen) == self.policy.capture_limit:
                self._programs.drop(self._seen.popitem(last=False)[0])
            self._programs.ask(key, args)
        self._seen[key] = None
        self._seen.move_to_end(key)
        return self._directly(self._programs.of(key), args)


class CountedDirect(Direct):
    """Strategy for devices without graphs: run directly, and count keys and moved inputs as with graphs.

    The outputs of a program are new on every call, and it reads its inputs in place, so nothing is copied.
    """

    def __init__(self, compiled: CompiledProgram, specialist: Specialist | None = None) -> None:
        super().__init__(compiled, compiled.row.why_no_graphs())
        policy = self.policy
        self._programs = None if specialist is None else ProgramsByKey(self.program, specialist)
        self._token = policy.pool or compiled.row.new_pool()
        self._mutated = [] if policy.skip_validation else self.inputs.having(Role.MUTATED)
        self._forced = policy.force_recapture and not policy.skip_validation
        self._seen: OrderedDict[Hashable, list[int]] = OrderedDict()
        self._dropped = 0

    @property
    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        """The call as a closure without attribute lookups. A call that repeats the previous one costs one
        comparison.
        """
        if self._programs is not None or self.inputs.packs:
            return self
        key_of, count, program, mutated, forced = (
            self._key,
            self._count,
            self.program,
            self._mutated,
            self._forced,
        )
        last: Any = None

        def call(args: list[Any]) -> list[Any]:
            nonlocal last
            now = (key_of(args), [args[index].data_ptr() for index in mutated]) if mutated else key_of(args)
            if now != last or forced:
                count(args)
                last = now
            return program(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def __call__(self, args: list[Any]) -> list[Any]:
        self._pack(args)
        self._count(args)
        program = self.program if self._programs is None else self._programs.of(self._key(args))
        return program(args)

    def _count(self, args: list[Any]) -> None:
        key = self._key(args)
        where = [args[index].data_ptr() for index in self._mutated]
        known = self._seen.get(key)
        if known is None:
            self._new_key(key)
            if self._programs is not None:
                self._programs.ask(key, args)
        elif self._forced:
            self.stats.recapture(RecaptureReason.FORCED, "force_recapture is set")
        elif known != where:
            moved = [i for i, old, new in zip(self._mutated, known, where, strict=True) if old != new]
            self.stats.recapture(RecaptureReason.MUTATED, format_moved(self.inputs, moved))
        self._seen[key] = where
        self._seen.move_to_end(key)

    def _new_key(self, key: Hashable) -> None:
        if len(self._seen) == self.policy.capture_limit:
            oldest, _ = self._seen.popitem(last=False)
            if self._programs is not None:
                self._programs.drop(oldest)
            self._dropped += 1
        self.stats.keys(len(self._seen) + 1)

    def report(self) -> Report:
        return replace(
            super().report(),
            pool=self._token,
            inputs=tuple(
                InputRow(self.inputs.title(i), role.value, 0, "read in place by the program")
                for i, role in enumerate(self.inputs.roles)
            ),
            recaptures=dict(self.stats.recaptures),
            dropped=self._dropped,
        )
