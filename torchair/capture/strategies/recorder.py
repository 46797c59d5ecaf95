"""Creates the recordings of one graph: chooses their memory and handles failures."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch

from torchair.capture.base.addresses import checked_inputs
from torchair.capture.base.compiled_program import INPUTS, CompiledProgram
from torchair.capture.base.output_buffers import OutputBuffer, OutputBufferPool
from torchair.capture.base.stats import CaptureStats
from torchair.capture.recording.memory_pool import LaunchOrder, StaticInputArena, pool_for
from torchair.capture.recording.recording import Recording, RecordingPlan, can_alias_inputs, record
from torchair.capture.strategies.recording_cache import KeyState
from torchair.core.environment import is_on
from torchair.core.log import capture_logger as logger
from torchair.core.native import fast_replay
from torchair.core.native.fast_replay import Repeat
from torchair.core.torch_private.device.memory import is_profiling
from torchair.devices import CaptureTarget, GraphUpdateRejected


class Recorder:
    """Creates the recordings of one graph."""

    def __init__(self, compiled: CompiledProgram, stats: CaptureStats, turns: LaunchOrder | None) -> None:
        self._compiled = compiled
        self._stats = stats
        self._row, self._device, policy = compiled.row, compiled.device, compiled.policy
        self.pool = pool_for(self._row, self._device, policy.pool, turns)
        self.arena = StaticInputArena(self._device, compiled.room.inputs)
        self._output_buffers = OutputBufferPool(self._device)
        self._is_shared = policy.reuse_pool or policy.pool is not None
        self.copies_inside = self._row.copies_inside
        # Borrowed inputs would serve only one key, whereas buffers serve all keys. Without guards, a call may
        # also pass another view of that memory.
        inputs = compiled.inputs
        self.borrows = inputs.guarded and not policy.clone_input and not inputs.key
        self._checked = checked_inputs(
            inputs,
            frozen_parameter=policy.frozen_parameter,
            skip_validation=policy.skip_validation,
        )
        # Whether this thread ran the program directly. Libraries create resources (such as cuBLAS handles) in
        # the first call of a thread, and cannot do so during a capture.
        self._thread = threading.local()
        self._failure: Exception | None = None
        self._postponed: bool | None = None

    def warmed_up(self) -> None:
        """Note that the program has run in this thread."""
        self._thread.is_warm = True

    def take_failure(self) -> Exception | None:
        """Return the failure of the last attempt and clear it."""
        failure, self._failure = self._failure, None
        return failure

    def take_postponed(self) -> bool | None:
        """Return whether a postponed recording is private, or None if none was postponed because this thread
        had not run the program yet.
        """
        postponed, self._postponed = self._postponed, None
        return postponed

    def record(self, entry: KeyState, args: list[Any], *, private: bool) -> Recording | None:
        """Record the program of an entry.

        Returns:
            The recording, or None. After a failure, `take_failure` returns the error. Otherwise this call
            cannot be recorded: there is no memory for another recording, or the thread must run the
            program first.
        """
        if not getattr(self._thread, "is_warm", False):
            self._stats.direct["first call of a thread"] += 1
            self._postponed = private
            return None
        private = private or self._compiled.policy.clone_output
        try:
            try:
                return self._recorded(entry, args, private)
            except GraphUpdateRejected as error:
                logger.info("%s: inputs are copied before each launch: %s", self._compiled.name, error)
                self.copies_inside = False
                return self._recorded(entry, args, private)
            except torch.OutOfMemoryError:
                # Memory cached by other pools cannot be used during a capture: free it and try once more.
                self._row.empty_cache()
                return self._recorded(entry, args, private)
        except torch.OutOfMemoryError as error:
            if not entry.recordings:
                self._failure = error
            else:
                self._stats.direct["no memory for another recording while outputs are held"] += 1
        except Exception as error:
            self._failure = error
        return None

    def _recorded(self, entry: KeyState, args: list[Any], private: bool) -> Recording:
        compiled, pool = self._compiled, self.pool
        if is_on("TORCH_NPUGRAPH_GC"):
            gc.collect()
        pool.open()
        token = pool.token if self._is_shared else self._row.new_pool()
        borrows = self.borrows and not entry.own_buffers and can_alias_inputs(compiled.inputs, args)
        plan = RecordingPlan(
            self._row,
            CaptureTarget(token, pool.turns.stream, self._error_mode(), self._device),
            arena=None if borrows else self.arena if self._is_shared else StaticInputArena(self._device),
            home=self._output_buffer(entry) if self._moves_outputs and not private else None,
            output_sizes=entry.output_sizes,
            private=private,
            in_graph=self.copies_inside,
        )
        with torch.profiler.record_function("acl_graph_capture"):
            made = record(entry.program, args, compiled.inputs, self._checked, plan)
        pool.is_fresh = pool.is_fresh and not self._is_shared
        made.fill = compiled.timed(INPUTS, made.fill)
        for observer in compiled.observers:
            observer.recorded(made.graph)
        logger.info("%s: recorded in %.1f ms, %d bytes", compiled.name, made.seconds * 1e3, made.nbytes)
        return made

    def _output_buffer(self, entry: KeyState) -> OutputBuffer:
        """Return the output buffer for another recording of this entry."""
        room = [self._compiled.room.of_outputs(*need) for need in entry.output_sizes]
        return self._output_buffers.find(entry.sizes, room, entry.output_buffers)

    def has_free_buffer(self, entry: KeyState) -> bool:
        """Return whether the outputs of another recording of this entry may be overwritten now."""
        if self._compiled.policy.clone_output:
            return False
        return not self._moves_outputs or self._output_buffers.has_free_buffer(
            entry.sizes, entry.output_buffers
        )

    @property
    def _moves_outputs(self) -> bool:
        """Whether the next recording copies its returned outputs to a buffer. The first one of a pool need
        not. If more recordings are certain to follow, it does, because one more block for its outputs would
        take more memory.
        """
        return self._is_shared and not (self.pool.is_fresh and not self._compiled.room.outputs)

    def repeat(self, made: Recording) -> Repeat | None:
        """Return a fast path for calls like this one, or None if each call needs all checks."""
        targets, outputs = made.statics.targets(), made.outputs
        if targets is None:
            return None
        plain = None if made.private else outputs.plain
        device = torch.device(self._device.type, self.pool.turns.index)
        return fast_replay.repeat(
            fast_replay.FastReplaySpec(
                addresses=made.places,
                inputs=targets,
                borrowed=made.statics.borrowed_inputs(),
                rest=outputs.rest,
                outputs=plain or [],
                give=outputs.copy if made.private else outputs.give if plain is None else None,
                refusals=(self._row.is_capturing, is_profiling),
                turns=self.pool.turns,
                launch=self._row.launcher(made.graph),
                direct=None if made.draws else self._row.direct_launch(made.graph, device),
                head=made.statics.head,
                count=made.count,
            )
        )

    def _error_mode(self) -> str:
        """Return the requested mode, but never `global` with several threads: it would raise in other
        threads.
        """
        mode = self._compiled.policy.error_mode
        return "thread_local" if mode == "global" and threading.active_count() > 1 else mode
