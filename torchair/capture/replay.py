"""The way that records and replays.

The life of a key:

* first call: the program runs directly, on the caller's stream, and its results are the results of the
  call. That is the warm-up (libraries load, kernels are tuned), and inputs are changed exactly once. Then
  the graph is captured, which executes nothing, so nothing has to be saved or restored.
* later calls: compare addresses, tell the graph where plain inputs are (it copies them, or they are copied
  before), replay, hand out.
* an output of the last replay is still held: a second recording takes turns with the first. Both held: a
  private recording, whose outputs never leave it, is replayed and its outputs are copied.
* recordings overlay their workspace. All but the first of a pool end by moving their outputs to memory of
  their own, where no replay of another recording can write.
* an input that is used in place has moved: recorded again under the same key. A second move keeps the older
  bindings beside the new one (double buffers, modules that share a graph); an input that is somewhere new
  on every call makes the call run directly.
* more keys than the limit: the key unused for the longest time is dropped. One that comes back must be
  asked for once more for every time it was dropped before it is recorded again, so a cycle of many shapes
  does not capture all day.

Invariants: one launch at a time per pool (its turns); no memory that anybody outside holds
is written, except inputs that the graph mutates; a failed capture leaves no trace but its reason.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torchair.capture.compiled import Compiled
from torchair.capture.direct import INPUTS, Direct, FastPath
from torchair.capture.key import key_text
from torchair.capture.ledger import Cause, cause_of, moved_text, watched_inputs
from torchair.capture.outputs import Homes, home_sizes
from torchair.capture.pending import Pending, Specialist
from torchair.capture.pool import Arena, Turns, pool_for
from torchair.capture.record import CannotRecord, Recording, record
from torchair.capture.report import InputRow, RecordingRow, Report
from torchair.capture.roles import Role
from torchair.capture.runner import Runner
from torchair.core import quick
from torchair.core.errors import Degraded
from torchair.core.log import capture_logger as logger
from torchair.core.program import Program
from torchair.core.quick import Repeat
from torchair.core.torch_private.memory import is_profiling
from torchair.devices import CaptureTarget, Refused

TURNS = 2  # recordings of one key that take turns while outputs are held
MAX_UNPROFITABLE_RECAPTURES = 3  # recaptures in a row that were replayed only once before calls run directly
BINDINGS = 64  # sets of addresses that one key has recordings for (modules that share a graph, buffers)
MAX_NEW = 32  # calls in a row whose sizes are not recorded, and nobody is told
MAX_UNUSED = 8  # recordings that are dropped before they are replayed, and nobody is told
REMEMBERED = 4096  # dropped keys that are remembered

NO_STATIC_KERNELS = "static_kernel_compile has no effect on a graph that is recorded in pieces"

Split = Callable[[CannotRecord], Runner | None]
"""Runs the graph in pieces, without the op that broke a recording; None where there is no such piece."""


class Entry:
    """The recordings of one key, and the program they record."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pending: Pending | None = None  # a better one on its way
        self.better: Program | None = None  # and here
        self.recordings: list[Recording] = []
        self.moves = 0
        self.unprofitable_recaptures = 0  # in a row
        # Where inputs were in calls that ran directly because one had moved: what comes again is recorded.
        self.direct_addresses: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self.own_buffers = False  # plain inputs got buffers after all
        self.output_sizes: list[int] = []
        self.draws = False  # running it advances the random generator


@dataclass(frozen=True)
class Around:
    """Who helps to record."""

    specialist: Specialist | None = None
    """Makes better programs for single keys while this one serves."""
    split: Split | None = None
    """Takes over where an op breaks a recording."""
    turns: Turns | None = None
    """Recordings with the same never run side by side."""
    parts: tuple[Runner, ...] | None = None
    """Runners inside the program, which record: the program itself is not."""


class Replay(Direct):
    """Records the program once per key and replays it."""

    def __init__(self, compiled: Compiled, around: Around) -> None:
        super().__init__(compiled, None)
        inputs, policy, row = compiled.inputs, compiled.policy, compiled.row
        self._specialist = around.specialist
        self._split = around.split
        self._row = row
        self._pool = pool_for(row, compiled.device, policy.pool, around.turns)
        self._turns = self._pool.turns
        self._arena = Arena(compiled.device)
        self._is_capturing = row.is_capturing
        self._copies_inside = row.copies_inside
        quick.load_async()
        self._watched = watched_inputs(
            inputs, frozen_parameter=policy.frozen_parameter, skip_validation=policy.skip_validation
        )
        self._validates = not policy.skip_validation
        self._forced = policy.force_recapture and self._validates
        self._patience = policy.warm_up + (policy.patience if inputs.key else 0)
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._drops: Counter[Hashable] = Counter()
        self._asked: Counter[Hashable] = Counter()
        self._dropped = self._unused = 0
        self._fresh = 0  # calls in a row with sizes that are not recorded yet
        self._last: Hashable = None
        self._gave_up = False
        self._failure: Exception | None = None  # of the last attempt to record
        # What a call leaves to do once it is another's turn: whatever compiles or loads code.
        self._later: Callable[[], None] | None = None
        self._repeat: Repeat | None = None  # of the recording that was replayed last
        # Has this thread run the program directly? Libraries make what they need (the handles of cuBLAS) in a
        # thread's first call, and cannot while a graph is recorded.
        self._thread = threading.local()
        self._postponed: bool | None = None  # a recording until then, and whether it is private

    @property
    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        return self

    def fast_path(self, written: bytes) -> FastPath | None:
        """Most calls are: same key, same stream, all addresses as before, outputs let go."""
        if self.inputs.packs or self._forced:
            return None

        def call(args: tuple[Any, ...]) -> list[Any] | None:
            repeat = self._repeat
            return None if repeat is None else repeat(args, written)

        return call

    def __call__(self, args: list[Any]) -> list[Any]:
        if self.inputs.packs:
            self._pack(args)
        if self.why_not is not None or self._is_capturing():
            if self._gave_up and self.degradations.strict:
                raise Degraded(f"a graph is not recorded, its ops would run one by one: {self.why_not}")
            return self._directly(self.program, args)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._call(args)
        return self._call(args)

    def _call(self, args: list[Any]) -> list[Any]:
        with self._turns.lock:
            outputs = self._in_turn(args)
            later, self._later = self._later, None
        if later is not None:
            later()
        return outputs

    def _in_turn(self, args: list[Any]) -> list[Any]:
        self._turns.take()
        self._repeat = None
        key = self._key(args)
        if torch.is_inference_mode_enabled():
            # Tensors made in inference mode must not reach code outside it.
            key = ("inference", key)
        entry = self._entries.get(key)
        if entry is None:
            return self._first_call(key, args)
        self._fresh = 0
        if key != self._last:
            self._entries.move_to_end(key)
            self._last = key
        if entry.better is not None:
            program, entry.better = entry.better, None
            return self._take_over(entry, program, args)
        if entry.pending is not None and entry.pending.is_done.is_set():
            self._later = partial(self._fetch, entry, entry.pending)
            entry.pending = None
        recording = self._choose(entry, args)
        if recording is None:
            return self._instead(entry, args)
        try:
            outputs = self._replay(entry, recording, args)
        except Refused:
            return self._copy_before(entry, args)
        if entry.pending is None and self._later is None and self.why_not is None:
            self._repeat = recording.repeat
        args.clear()
        return outputs

    def _fetch(self, entry: Entry, pending: Pending) -> None:
        """Load a better program; others replay meanwhile."""
        entry.better = pending.take()

    def _replay(self, entry: Entry, recording: Recording, args: list[Any]) -> list[Any]:
        if self._validates:
            recording.statics.check(args)
        if isinstance(recording.repeat, quick.PythonRepeat) and quick.is_loaded():
            recording.repeat = self._repeat_of(recording, args)
        if entry.draws and not recording.replays:
            return self._replay_random(recording, args)
        if is_profiling():
            with torch.profiler.record_function("acl_graph_replay"):
                return recording.replay(args)
        return recording.replay(args)

    def _instead(self, entry: Entry, args: list[Any]) -> list[Any]:
        """Without a recording. Where none could be made, it was not for the arguments if the program runs."""
        failure, self._failure = self._failure, None
        postponed, self._postponed = self._postponed, None
        kept = list(args)
        outputs = self._directly(entry.program, args)
        self._thread.is_warm = True
        if postponed is not None:
            self._proven(self._record(entry, kept, private=postponed))
        elif failure is not None:
            self._fail(failure)
        return outputs

    def _copy_before(self, entry: Entry, args: list[Any]) -> list[Any]:
        """The runtime does not let a graph copy from elsewhere: from now on inputs are copied before."""
        self._copies_inside = False
        for known in self._entries.values():
            self._drop(known.recordings)
            known.recordings = []
        what = "a copy inside the graph was refused: inputs are copied before each launch"
        recording = self._record_again(entry, args, Cause.COPIES, what, keep=0)
        if recording is None:
            return self._instead(entry, args)
        outputs = self._replay(entry, recording, args)
        args.clear()
        return outputs

    def _replay_random(self, recording: Recording, args: list[Any]) -> list[Any]:
        """The first replay of a graph that draws random numbers must advance the generator."""
        before = self._row.random_offset(self.device)
        outputs = recording.replay(args)
        if self._row.random_offset(self.device) == before:
            self._give_up("random numbers repeat: a replay did not advance the generator of the device")
        return outputs

    # Choosing a recording

    def _choose(self, entry: Entry, args: list[Any]) -> Recording | None:
        """The recording for this call, made if need be; None to run directly."""
        if self._forced:
            return self._record_again(entry, args, Cause.FORCED, "force_recapture is set", keep=0)
        bound = 0
        for recording in entry.recordings:
            if recording.ledger.match(args):
                if recording.is_free():
                    return self._settle(entry, recording, args)
                bound += 1
        if bound or not entry.recordings:
            return self._record(entry, args, private=bound >= TURNS)
        return self._rebind(entry, args)

    def _settle(self, entry: Entry, recording: Recording, args: list[Any]) -> Recording | None:
        """Last look at borrowed buffers: data that the caller still holds are not overwritten."""
        index = recording.statics.in_use(args)
        if index is None:
            return recording
        entry.own_buffers = True
        what = (
            f"input {self.inputs.title(index)} moved, and its first tensor is still held: it has a buffer now"
        )
        return self._record_again(entry, args, Cause.PLAIN, what, keep=0)

    def _rebind(self, entry: Entry, args: list[Any]) -> Recording | None:
        """An input that is used in place is somewhere else."""
        latest = entry.recordings[-1]
        moved = latest.ledger.moved(args)
        what = moved_text(self.inputs, moved)
        entry.unprofitable_recaptures = entry.unprofitable_recaptures + 1 if latest.replays <= 1 else 0
        now = tuple(latest.ledger.read(args))
        is_new = now not in entry.direct_addresses
        if is_new and entry.unprofitable_recaptures >= MAX_UNPROFITABLE_RECAPTURES:
            self._note_direct(entry, now, moved, what)
            return None
        entry.direct_addresses.pop(now, None)
        entry.moves += 1
        keep = BINDINGS - 1 if entry.moves > 1 else 0
        return self._record_again(entry, args, cause_of(self.inputs, moved), what, keep=keep)

    def _note_direct(self, entry: Entry, now: tuple[int, ...], moved: list[int], what: str) -> None:
        """A call runs directly because inputs are where they never were. Where parameters move too, it is for
        another module that shares the graph: its turn comes again, unless there are too many of them.
        """
        self.book.direct[f"{what} on every call"] += 1
        entry.direct_addresses[now] = None
        is_full = len(entry.direct_addresses) > BINDINGS
        if is_full:
            entry.direct_addresses.popitem(last=False)
        roles = {self.inputs.roles[index] for index in moved}
        if is_full or Role.PARAMETER not in roles:
            first = moved_text(self.inputs, moved[:1])
            self.degradations.add(
                f"{first} on every call, so the ops of its graph run one by one",
                next="keep the tensor and write into it",
                here=True,
            )

    def _record_again(
        self, entry: Entry, args: list[Any], cause: Cause, what: str, *, keep: int
    ) -> Recording | None:
        logger.info("%s: recording again: %s", self.name, what)
        self.book.recapture(cause, what)
        surplus = entry.recordings[: len(entry.recordings) - keep]
        entry.recordings = entry.recordings[len(surplus) :]
        self._drop(surplus)
        return self._record(entry, args, private=False)

    # Recording

    def _first_call(self, key: Hashable, args: list[Any]) -> list[Any]:
        """Run directly, which warms up, then record for the calls to come."""
        kept = list(args)
        offset = self._row.random_offset(self.device) if self.inputs.random else None
        with torch.profiler.record_function("acl_graph_warm_up"):
            outputs = self.program(args)
        self._thread.is_warm = True
        if self._asked[key] < self._drops[key] + self._patience:
            if len(self._asked) > REMEMBERED:
                self._asked.clear()
            self._note_new(key)
            return outputs
        self._asked.pop(key, None)
        while len(self._entries) >= self.policy.capture_limit:
            self._drop_oldest()
        entry = self._entries[key] = Entry(self.program)
        entry.output_sizes = home_sizes(outputs, kept, self.inputs)
        entry.draws = offset is not None and self._row.random_offset(self.device) != offset
        self._last = key
        if self._proven(self._record(entry, kept, private=False)):
            self.book.keys(len(self._entries))
            if self._specialist is not None:
                entry.pending = self._specialist(key, kept)
        return outputs

    def _note_new(self, key: Hashable) -> None:
        """A call with these sizes ran directly; they are recorded once they have come often enough."""
        self._asked[key] += 1
        is_warm_up = self._asked[key] <= self.policy.warm_up
        dropped = "its recording was dropped at capture_limit" if self._drops[key] else "new sizes"
        self.book.direct["warm-up" if is_warm_up and not self._drops[key] else dropped] += 1
        self._fresh += 1
        if self._fresh == MAX_NEW and self.policy.counts and not self._dropped:
            self.degradations.add(
                f"{MAX_NEW} calls in a row had new sizes, so the ops of its graph run one by one",
                next="pad to a few sizes",
                here=True,
            )

    def _take_over(self, entry: Entry, program: Program, args: list[Any]) -> list[Any]:
        """A better program for this key: it runs directly once, which warms it up, and is recorded."""
        kept = list(args)
        outputs = program(args)
        self._thread.is_warm = True
        self._drop(entry.recordings)
        entry.recordings = []
        entry.program = program
        entry.output_sizes = home_sizes(outputs, kept, self.inputs)
        self._proven(self._record(entry, kept, private=False))
        return outputs

    def _proven(self, recording: Recording | None) -> bool:
        """Was it made? The program has just run with these arguments: if not, no other call will do."""
        failure, self._failure = self._failure, None
        if failure is not None:
            self._fail(failure)
        return recording is not None

    def _record(self, entry: Entry, args: list[Any], *, private: bool) -> Recording | None:
        """Record for this entry. None when it failed, and then `_failure` says why; where another recording
        merely has no room, or the thread must run the program first, only for this call.
        """
        if not getattr(self._thread, "is_warm", False):
            self.book.direct["first call of a thread"] += 1
            self._postponed = private
            return None
        private = private or self.policy.clone_output
        try:
            try:
                return self._recorded(entry, args, private)
            except Refused as error:
                logger.info("%s: inputs are copied before each launch: %s", self.name, error)
                self._copies_inside = False
                return self._recorded(entry, args, private)
            except torch.OutOfMemoryError:
                # What other pools have cached cannot be used while capturing: give it back and try once more.
                self._row.empty_cache()
                return self._recorded(entry, args, private)
        except torch.OutOfMemoryError as error:
            if not entry.recordings:
                self._failure = error
            else:
                self.book.direct["no memory for another recording while outputs are held"] += 1
        except Exception as error:
            self._failure = error
        return None

    def _recorded(self, entry: Entry, args: list[Any], private: bool) -> Recording:
        self._pool.open()
        shared = self.policy.reuse_pool or self.policy.pool is not None
        arena = self._arena if shared else Arena(self.device)
        borrows = not self.policy.clone_input and not entry.own_buffers
        moves_outputs = shared and not private and not self._pool.is_fresh
        with torch.profiler.record_function("acl_graph_capture"):
            made = record(
                entry.program,
                args,
                self.inputs,
                self._watched,
                row=self._row,
                into=CaptureTarget(
                    self._pool.token if shared else self._row.new_pool(),
                    self._turns.stream,
                    self._error_mode(),
                    self.device,
                ),
                arena=None if borrows else arena,
                private=private,
                homes=Homes(entry.output_sizes, self.device) if moves_outputs else None,
                in_graph=self._copies_inside,
            )
        made.repeat = self._repeat_of(made, args)
        self._pool.is_fresh = self._pool.is_fresh and not shared
        entry.recordings.append(made)
        made.fill = self.compiled.timed(INPUTS, made.fill)
        for observer in self.compiled.observers:
            observer.recorded(made.graph)
        logger.info("%s: recorded in %.1f ms, %d bytes", self.name, made.seconds * 1e3, made.nbytes)
        self._keep_budget(entry)
        return made

    def _repeat_of(self, made: Recording, args: list[Any]) -> Repeat | None:
        """How it serves calls like this one; None where each call needs a closer look."""
        targets, outputs = made.statics.targets(), made.outputs
        if made.private or targets is None:
            return None
        return quick.repeat(
            quick.FastReplaySpec(
                addresses=made.ledger,
                inputs=targets,
                storages=outputs.watched,
                outputs=outputs.plain or [],
                give=None if outputs.plain is not None else outputs.give,
                refusals=(self._is_capturing, is_profiling),
                turns=self._turns,
                key_of=self._key if self.inputs.key else None,
                key=self._key(args),
                launch=self._row.launcher(made.graph),
                head=made.statics.head,
                count=made.count,
            )
        )

    def _error_mode(self) -> str:
        """As asked for; but a recording never raises in somebody else's thread, as `global` would."""
        mode = self.policy.error_mode
        return "thread_local" if mode == "global" and threading.active_count() > 1 else mode

    def _keep_budget(self, newest: Entry) -> None:
        budget = self.policy.memory_budget
        if budget is None:
            return
        while (
            len(self._entries) > 1
            and self._bytes() > budget
            and next(iter(self._entries.values())) is not newest
        ):
            self._drop_oldest()

    def _bytes(self) -> int:
        return sum(recording.nbytes for entry in self._entries.values() for recording in entry.recordings)

    # Dropping

    def _drop_oldest(self) -> None:
        key, entry = self._entries.popitem(last=False)
        self._dropped += 1
        if len(self._drops) > REMEMBERED:
            self._drops.clear()
        self._drops[key] += 1
        self._unused += not any(recording.replays for recording in entry.recordings)
        if self._unused == MAX_UNUSED:
            self.degradations.add(
                f"recordings are dropped before they are replayed: more sizes come than capture_limit "
                f"({self.policy.capture_limit}) keeps",
                next="pad to fewer sizes, or raise capture_limit",
                here=True,
            )
        self._drop(entry.recordings)
        self.book.keys(len(self._entries))

    def _drop(self, recordings: list[Recording]) -> None:
        if not recordings:
            return
        self._row.synchronize(self.device)
        for recording in recordings:
            recording.drop()

    def _fail(self, error: Exception) -> None:
        """The graph cannot be recorded: in pieces, or not at all."""
        if self._split is not None and isinstance(error, CannotRecord):
            self._forget(f"recording failed: {error}")
            self._later = partial(self._in_pieces, error, self._split)
        elif isinstance(error, torch.OutOfMemoryError):
            self._give_up(f"out of memory while recording: {_first_line(error)}")
        else:
            text = str(error) if isinstance(error, CannotRecord) else _first_line(error)
            self._give_up(f"recording failed: {text}")

    def _in_pieces(self, error: CannotRecord, split: Split) -> None:
        """Another runner, which records the graph in pieces, runs it from now on."""
        try:
            other = split(error)
        except BaseException:
            # In strict mode, say: then no later call may pass for a recorded one.
            self._gave_up = True
            raise
        if other is None:
            self._give_up(f"recording failed: {error}")
            return
        self.why_not = f"{other.why_not}: {error}"
        self.program, self.parts = other.program, other.parts
        if self._specialist is not None:
            self.degradations.add(NO_STATIC_KERNELS)

    def _give_up(self, reason: str) -> None:
        """Run directly from now on."""
        self._forget(reason)
        self._gave_up = True
        self.degradations.add(f"a graph is not recorded, its ops run one by one: {reason}", here=True)

    def _forget(self, reason: str) -> None:
        self.why_not = reason
        for entry in self._entries.values():
            self._drop(entry.recordings)
        self._entries.clear()
        self.book.forget()

    def report(self) -> Report:
        recordings = [(key, r) for key, entry in self._entries.items() for r in entry.recordings]
        latest = recordings[-1][1].statics if recordings else None
        sizes = dict(zip(latest.indices, latest.sizes, strict=True)) if latest else {}
        return Report(
            self.name,
            self.program.kind,
            str(self.device),
            self.why_not,
            tuple(self.degradations.texts),
            pool=self._pool.token,
            inputs=tuple(
                InputRow(self.inputs.title(i), role.value, sizes.get(i, 0), self._why_copied(role))
                for i, role in enumerate(self.inputs.roles)
            ),
            recordings=tuple(
                RecordingRow(
                    key_text(key),
                    r.replays,
                    r.nbytes,
                    r.bytes_out,
                    r.seconds,
                    r.private,
                )
                for key, r in recordings
            ),
            recaptures=dict(self.book.recaptures),
            direct=dict(self.book.direct),
            dropped=self._dropped,
            static_bytes=self._arena.nbytes,
            parts=self._report_parts(),
        )

    def _why_copied(self, role: Role) -> str:
        if role in (Role.PLAIN, Role.ALIAS):
            return "copied into its static buffer" if self.policy.clone_input else "copied when it has moved"
        if role in (Role.SYMBOL, Role.UNUSED):
            return "picks the recording" if role is Role.SYMBOL else "not read"
        unchecked = not self._validates or (role is Role.PARAMETER and self.policy.frozen_parameter)
        return "used in place, address not compared" if unchecked else "used in place, address compared"


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
