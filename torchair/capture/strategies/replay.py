"""The strategy that records and replays.

The life of a key:

* First call: the program runs directly, on the caller's stream, and its results are the results of the call.
  This is the warm-up (libraries load, kernels are tuned), and inputs are changed exactly once. Then the graph
  is captured, which executes nothing, so nothing has to be saved or restored.
* Later calls: compare addresses, pass the addresses of plain inputs to the graph (or copy those inputs
  before), replay, return the outputs.
* If an output of the last replay is still held, a second recording alternates with the first. If both are
  held, a private recording is replayed. Its outputs are never returned themselves, only copies.
* Recordings share their workspace. All but the first of a pool end with copies of their outputs to an output
  buffer, where no graph has workspace. Keys share these buffers, so held outputs of another key count as
  well.
* If an input that is used in place has moved, the key is recorded again. From the second move on, older
  recordings are kept as well (double buffers, modules that share a graph). If an input moves on every call,
  the calls run directly.
* If there are more keys than the limit, the least recently used key is dropped. If it comes back, it runs
  directly once before it is recorded again, then three times, seven and so on. A cycle of many shapes
  therefore does not capture all the time.

Invariants: one launch at a time per pool (its launch order); no memory that the caller holds is written,
except inputs that the graph mutates; a failed capture leaves only its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from torchair.capture.base.addresses import RecaptureReason, cause_of, format_moved
from torchair.capture.base.compiled_program import CompiledProgram
from torchair.capture.base.inputs import Role
from torchair.capture.base.key import format_key
from torchair.capture.base.output_buffers import BUFFERS_PER_KEY
from torchair.capture.base.pending_program import PendingProgram, Specialist, lost_in_pieces
from torchair.capture.base.stats import InputRow, RecordingRow, Report
from torchair.capture.recording.memory_pool import LaunchOrder
from torchair.capture.recording.outputs import output_sizes
from torchair.capture.recording.recording import CannotRecord, Recording
from torchair.capture.strategies.direct import Direct, FastPath
from torchair.capture.strategies.recorder import Recorder
from torchair.capture.strategies.recording_cache import KeyState, RecordingCache
from torchair.capture.strategies.runner import Runner
from torchair.core.errors import Degraded
from torchair.core.log import capture_logger as logger
from torchair.core.native import fast_replay
from torchair.core.program import Program
from torchair.core.torch_private.device.memory import is_profiling
from torchair.devices import GraphUpdateRejected

MAX_UNPROFITABLE_RECAPTURES = 3  # recaptures in a row with at most one replay, after which calls run directly
# Address sets with recordings (modules that share a graph, double buffers).
MAX_RECORDINGS_PER_KEY = 64

Split = Callable[[CannotRecord], Runner | None]
"""Returns a runner that runs the graph in partitions, without the op that broke a recording; None if that is
not possible.
"""


@dataclass(frozen=True)
class RunnerOptions:
    """Callbacks and shared state that a runner uses to record."""

    specialist: Specialist | None = None
    """Compiles optimized programs for single keys while the common program serves calls."""
    successor: PendingProgram | None = None
    """An optimized program for all keys that is being compiled."""
    split: Split | None = None
    """Splits the graph if an op breaks a recording."""
    turns: LaunchOrder | None = None
    """Recordings with the same launch order never run concurrently."""
    parts: tuple[Runner, ...] | None = None
    """Runners inside the program that record. The program itself is not recorded."""


class Replay(Direct):
    """Record the program once per key and replay it."""

    def __init__(self, compiled: CompiledProgram, options: RunnerOptions) -> None:
        super().__init__(compiled, None)
        policy, row = compiled.policy, compiled.row
        self._specialist = options.specialist
        self._successor = options.successor
        if self._successor is not None:
            self._successor.calls = self._count_calls
        self._split = options.split
        self._row = row
        self._recorder = Recorder(compiled, self.stats, options.turns)
        self._turns = self._recorder.pool.turns
        self._entries = RecordingCache(compiled, self.stats)
        self._is_capturing = row.is_capturing
        fast_replay.load_async()
        self._validates = not policy.skip_validation
        self._forced = policy.force_recapture and self._validates
        self._disabled = False
        # Work that the current call leaves for after the lock is released: anything that compiles or loads
        # code.
        self._deferred: Callable[[], None] | None = None

    @property
    def awaited(self) -> PendingProgram | None:
        return self._successor

    @property
    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        return self

    def fast_path(self, written: bytes) -> FastPath | None:
        """Return the fast path, for calls with a known key, stream and addresses and released outputs."""
        if self.inputs.packs or self._forced:
            return None
        key_of, find, tick, is_inference = (
            self._key,
            self._entries.find,
            self._entries.tick,
            torch.is_inference_mode_enabled,
        )

        def call(args: tuple[Any, ...]) -> list[Any] | None:
            entry = find(("inference", key_of(args)) if is_inference() else key_of(args))
            if entry is None:
                return None
            pending = entry.pending
            if pending is not None and pending.is_done.is_set():
                return None
            entry.used = tick()
            for repeat in entry.repeats:
                outputs = repeat(args, written)
                if outputs is not None:
                    return outputs
            return None

        return call

    def __call__(self, args: list[Any]) -> list[Any]:
        if self.inputs.packs:
            self._pack(args)
        if self.why_not is not None or self._is_capturing():
            if self._disabled and self.degradations.strict:
                raise Degraded(f"a graph is not recorded, so its ops would run one by one: {self.why_not}")
            return self._directly(self.program, args)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._call(args)
        return self._call(args)

    def _call(self, args: list[Any]) -> list[Any]:
        with self._turns.lock:
            outputs = self._serve_locked(args)
            deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred()
        if outputs is not None:
            return outputs
        outputs = self._directly(self.program, args)
        self._recorder.warmed_up()
        return outputs

    def _serve_locked(self, args: list[Any]) -> list[Any] | None:
        """Return the outputs, or None for sizes that are not recorded yet: those run without the lock."""
        self._turns.take()
        key = self._key(args)
        if torch.is_inference_mode_enabled():
            # Tensors created in inference mode must not reach code outside it.
            key = ("inference", key)
        entry = self._entries.find(key)
        if entry is None:
            self._adopt_successor()
            return self._first_call(key, args) if self._entries.should_record(key) else None
        entry.used, entry.repeats = self._entries.tick(), ()
        if entry.better is not None:
            program, entry.better = entry.better, None
            return self._switch_program(entry, program, args)
        if entry.pending is not None and not entry.pending.is_asked:
            entry.pending.wanted()
        if entry.pending is not None and entry.pending.is_done.is_set():
            self._deferred = partial(self._load_optimized, entry, entry.pending)
            entry.pending = None
        recording = self._choose(entry, args)
        if recording is None:
            return self._run_unrecorded(entry, args)
        try:
            outputs = self._replay(entry, recording, args)
        except GraphUpdateRejected:
            return self._copy_inputs_before(entry, args)
        if self._deferred is None and self.why_not is None:
            entry.enable_fast_path(recording)
        args.clear()
        return outputs

    def _load_optimized(self, entry: KeyState, pending: PendingProgram) -> None:
        """Load an optimized program. Other threads replay meanwhile; the next call of the key uses the
        program.
        """
        better = pending.take()
        with self._turns.lock:
            entry.better, entry.repeats = better, ()
        self._adopt_successor()

    def _replay(self, entry: KeyState, recording: Recording, args: list[Any]) -> list[Any]:
        if self._validates:
            recording.statics.check(args)
        if isinstance(recording.repeat, fast_replay.PythonRepeat) and fast_replay.is_loaded():
            recording.repeat = self._recorder.repeat(recording)
        if is_profiling():
            with torch.profiler.record_function("acl_graph_replay"):
                return self._launch(entry, recording, args)
        return self._launch(entry, recording, args)

    def _run_unrecorded(self, entry: KeyState, args: list[Any]) -> list[Any]:
        """Run without a recording. If the program runs, an earlier failure to record was not caused by the
        arguments.
        """
        failure, postponed = self._recorder.take_failure(), self._recorder.take_postponed()
        kept = list(args)
        outputs = self._directly(entry.program, args)
        self._recorder.warmed_up()
        if postponed is not None:
            self._check_recorded(self._record(entry, kept, private=postponed))
        elif failure is not None:
            self._fail(failure)
        return outputs

    def _copy_inputs_before(self, entry: KeyState, args: list[Any]) -> list[Any]:
        """Copy inputs before each launch from now on: the runtime rejects new source addresses of copies in a
        graph.
        """
        self._recorder.copies_inside = False
        for known in self._entries:
            self._entries.drop(known, 0)
        what = "the device rejected a graph update: inputs are copied before each launch"
        recording = self._record_again(entry, args, RecaptureReason.COPIES, what, keep=0)
        if recording is None:
            return self._run_unrecorded(entry, args)
        outputs = self._replay(entry, recording, args)
        args.clear()
        return outputs

    def _launch(self, entry: KeyState, recording: Recording, args: list[Any]) -> list[Any]:
        """Replay. The first replay checks that a graph that draws random numbers advances the generator."""
        if recording.replays:
            return recording.replay(args)
        before = self._row.random_offset(self.device)
        outputs = recording.replay(args)
        recording.draws = self._row.random_offset(self.device) != before
        recording.repeat = self._recorder.repeat(recording)
        if entry.draws and not recording.draws:
            self._disable("random numbers repeat: a replay did not advance the device's random generator")
        return outputs

    # Choosing a recording

    def _choose(self, entry: KeyState, args: list[Any]) -> Recording | None:
        """Return the recording for this call, created if necessary; None to run directly."""
        if self._forced:
            return self._record_again(entry, args, RecaptureReason.FORCED, "force_recapture is set", keep=0)
        bound, copying = 0, None
        for recording in entry.recordings:
            if recording.ledger.match(args):
                if recording.private:
                    copying = recording
                elif recording.is_free():
                    return self._check_borrowed(entry, recording, args)
                else:
                    bound += 1
        is_full = bound >= BUFFERS_PER_KEY or not self._recorder.has_free_buffer(entry)
        if copying is not None and is_full:
            return self._check_borrowed(entry, copying, args)
        if bound or copying is not None or not entry.recordings:
            return self._record(entry, args, private=is_full)
        return self._record_moved(entry, args)

    def _check_borrowed(self, entry: KeyState, recording: Recording, args: list[Any]) -> Recording | None:
        """Return the recording, or a new one if a borrowed buffer is in use: data that the caller holds is
        not overwritten.
        """
        index = recording.statics.in_use(args)
        if index is None:
            return recording
        entry.own_buffers = True
        what = (
            f"input {self.inputs.title(index)} moved, and its first tensor is still held or has freed its "
            "memory: it now has a static buffer"
        )
        return self._record_again(entry, args, RecaptureReason.PLAIN, what, keep=0)

    def _record_moved(self, entry: KeyState, args: list[Any]) -> Recording | None:
        """Record again because an input that is used in place has moved."""
        latest = entry.recordings[-1]
        moved = latest.ledger.moved(args)
        what = format_moved(self.inputs, moved)
        entry.unprofitable_recaptures = entry.unprofitable_recaptures + 1 if latest.replays <= 1 else 0
        now = tuple(latest.ledger.read(args))
        is_new = now not in entry.direct_addresses
        if is_new and entry.unprofitable_recaptures >= MAX_UNPROFITABLE_RECAPTURES:
            self._note_direct(entry, now, moved, what)
            return None
        entry.direct_addresses.pop(now, None)
        entry.moves += 1
        keep = MAX_RECORDINGS_PER_KEY - 1 if entry.moves > 1 else 0
        return self._record_again(entry, args, cause_of(self.inputs, moved), what, keep=keep)

    def _note_direct(self, entry: KeyState, now: tuple[int, ...], moved: list[int], what: str) -> None:
        """Report a call that runs directly because inputs have new addresses. Moved parameters belong to
        another module that shares the graph. It is recorded when it comes again, unless there are too many
        such modules.
        """
        self.stats.direct[f"{what} on every call"] += 1
        entry.direct_addresses[now] = None
        is_full = len(entry.direct_addresses) > MAX_RECORDINGS_PER_KEY
        if is_full:
            entry.direct_addresses.popitem(last=False)
        roles = {self.inputs.roles[index] for index in moved}
        if is_full or Role.PARAMETER not in roles:
            first = format_moved(self.inputs, moved[:1])
            self.degradations.add(
                f"{first} on every call, so its ops run one by one",
                next="keep the tensor and write into it with copy_()",
                here=True,
            )

    def _record_again(
        self, entry: KeyState, args: list[Any], cause: RecaptureReason, what: str, *, keep: int
    ) -> Recording | None:
        logger.info("%s: recording again: %s", self.name, what)
        self.stats.recapture(cause, what)
        self._entries.drop(entry, keep)
        return self._record(entry, args, private=not self._recorder.has_free_buffer(entry))

    # Recording

    def _first_call(self, key: Hashable, args: list[Any]) -> list[Any]:
        """Run directly, which is the warm-up, then record for later calls."""
        kept = list(args)
        offset = self._row.random_offset(self.device) if self.inputs.random else None
        with torch.profiler.record_function("acl_graph_warm_up"):
            outputs = self.program(args)
        self._recorder.warmed_up()
        entry = KeyState(self.program)
        self._entries.add(key, entry)
        entry.output_sizes = output_sizes(outputs, kept, self.inputs)
        entry.draws = offset is not None and self._row.random_offset(self.device) != offset
        if self._check_recorded(self._record(entry, kept, private=False)):
            self._entries.count()
            entry.pending = self._successor
            if self._specialist is not None:
                entry.pending = self._specialist(key, kept) or entry.pending
        return outputs

    def _adopt_successor(self) -> None:
        """Use the optimized program for new keys once it is ready."""
        successor = self._successor
        if successor is None or not successor.is_done.is_set():
            return
        self._successor = None
        if (better := successor.take()) is not None:
            self.program = better
            self.compiled = replace(self.compiled, program=better)

    def _count_calls(self) -> int:
        return sum(recording.replays for _, recording in self._entries.recordings())

    def _switch_program(self, entry: KeyState, program: Program, args: list[Any]) -> list[Any]:
        """Switch this key to an optimized program: run it directly once as warm-up, then record it."""
        kept = list(args)
        outputs = program(args)
        self._recorder.warmed_up()
        self._entries.drop(entry, 0)
        entry.program = program
        entry.output_sizes = output_sizes(outputs, kept, self.inputs)
        self._check_recorded(self._record(entry, kept, private=False))
        return outputs

    def _check_recorded(self, recording: Recording | None) -> bool:
        """Return whether the recording exists. The program has just run with these arguments, so a failure is
        final.
        """
        failure = self._recorder.take_failure()
        if failure is not None:
            self._fail(failure)
        return recording is not None

    def _record(self, entry: KeyState, args: list[Any], *, private: bool) -> Recording | None:
        made = self._recorder.record(entry, args, private=private)
        if made is not None:
            entry.recordings.append(made)
            self._entries.evict_to_budget(entry)
        return made

    # Without recordings

    def _fail(self, error: Exception) -> None:
        """Handle a failed recording: split the graph if possible, otherwise run directly from now on."""
        if self._split is not None and isinstance(error, CannotRecord):
            self._drop_recordings(f"recording failed: {error}")
            self._deferred = partial(self._use_partitions, error, self._split)
        elif isinstance(error, torch.OutOfMemoryError):
            self._disable(f"out of memory while recording: {_first_line(error)}")
        else:
            text = str(error) if isinstance(error, CannotRecord) else _first_line(error)
            self._disable(f"recording failed: {text}")

    def _use_partitions(self, error: CannotRecord, split: Split) -> None:
        """Switch to a runner that records the graph in partitions."""
        try:
            other = split(error)
        except BaseException:
            # In strict mode, for example: no later call may then count as recorded.
            self._disabled = True
            raise
        if other is None:
            self._disable(f"recording failed: {error}")
            return
        self.why_not = f"{other.why_not}: {error}"
        self.program, self.parts = other.program, other.parts
        if self._specialist is not None:
            self.degradations.add(lost_in_pieces(self._specialist))

    def _disable(self, reason: str) -> None:
        """Run directly from now on."""
        self._drop_recordings(reason)
        self._disabled = True
        self.degradations.add(f"a graph is not recorded, its ops run one by one: {reason}", here=True)

    def _drop_recordings(self, reason: str) -> None:
        self.why_not = reason
        self._entries.clear()

    def report(self) -> Report:
        recordings = self._entries.recordings()
        latest = recordings[-1][1].statics if recordings else None
        sizes = dict(zip(latest.indices, latest.sizes, strict=True)) if latest else {}
        return replace(
            super().report(),
            pool=self._recorder.pool.token,
            inputs=tuple(
                InputRow(self.inputs.title(i), role.value, sizes.get(i, 0), self._why_copied(role))
                for i, role in enumerate(self.inputs.roles)
            ),
            recordings=tuple(
                RecordingRow(
                    format_key(key),
                    r.replays,
                    r.nbytes,
                    r.bytes_out,
                    r.seconds,
                    r.private,
                )
                for key, r in recordings
            ),
            recaptures=dict(self.stats.recaptures),
            direct=dict(self.stats.direct),
            dropped=self._entries.dropped,
            static_bytes=self._recorder.arena.nbytes,
            home_bytes=self._entries.home_bytes,
        )

    def _why_copied(self, role: Role) -> str:
        if role in (Role.PLAIN, Role.ALIAS):
            return "copied if it has moved" if self._recorder.borrows else "copied into its static buffer"
        if role in (Role.SYMBOL, Role.UNUSED):
            return "selects the recording" if role is Role.SYMBOL else "not read"
        unchecked = not self._validates or (role is Role.PARAMETER and self.policy.frozen_parameter)
        return "used in place, address not compared" if unchecked else "used in place, address compared"


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
