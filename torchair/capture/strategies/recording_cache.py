"""The recordings of one graph by key: which keys are recorded, and which are dropped for others."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence

from torchair.capture.base.compiled_program import CompiledProgram
from torchair.capture.base.key import format_key
from torchair.capture.base.output_buffers import TURNS, OutputBuffer
from torchair.capture.base.pending_program import PendingProgram
from torchair.capture.base.stats import CaptureStats
from torchair.capture.recording.outputs import Need
from torchair.capture.recording.recording import Recording
from torchair.core.log import capture_logger as logger
from torchair.core.native.fast_replay import Repeat
from torchair.core.program import Program

MAX_NEW = 32  # calls in a row whose sizes are not recorded, and nobody is told
MAX_UNUSED = 8  # recordings that are dropped before they are replayed, and nobody is told
REMEMBERED = 4096  # dropped keys that are remembered
MOST_DOUBLED = 10  # times that a dropped key must come twice as often as before


class KeyState:
    """The recordings of one key, and the program they record."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pending: PendingProgram | None = None  # a better one on its way
        self.better: Program | None = None  # and here
        self.recordings: list[Recording] = []
        self.repeats: tuple[Repeat, ...] = ()  # of recordings that may serve the next call, in this order
        self.used = 0  # a higher number than those used before
        self.moves = 0
        self.unprofitable_recaptures = 0  # in a row
        # Where inputs were in calls that ran directly because one had moved: what comes again is recorded.
        self.direct_addresses: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self.own_buffers = False  # plain inputs got buffers after all
        self.needs: list[Need] = []  # of memory for its outputs
        self.draws = False  # running it advances the random generator

    def offer(self, latest: Recording) -> None:
        """The next call may be like the one that this recording served: it, or one that takes turns with it,
        serves that. One that copies its outputs does where all others are held.
        """
        latest_first = [latest, *(each for each in reversed(self.recordings) if each is not latest)]
        found = sorted(latest_first[: TURNS + 1], key=lambda each: each.private)
        self.repeats = () if latest.repeat is None else tuple(each.repeat for each in found if each.repeat)

    @property
    def sizes(self) -> list[int]:
        """Bytes of its outputs, by storage."""
        return [need.nbytes for need in self.needs]

    @property
    def homes(self) -> list[OutputBuffer]:
        """Where its recordings have their outputs, beside the pool."""
        return [recording.home for recording in self.recordings if recording.home is not None]


class RecordingCache:
    """A key is recorded once it has come often enough: as often as policy says, and once more when it was
    dropped, twice as often with every further time. Those that serve calls need nobody's turn to be found.
    """

    def __init__(self, compiled: CompiledProgram, book: CaptureStats) -> None:
        self._compiled = compiled
        self._book = book
        policy = compiled.policy
        self._patience = policy.warm_up + (policy.patience if compiled.inputs.key else 0)
        self._entries: dict[Hashable, KeyState] = {}
        self.find = self._entries.get
        """The entry of a key, if it has one."""
        self.tick = itertools.count(1).__next__
        """The number of a use."""
        self._drops: Counter[Hashable] = Counter()
        self._asked: Counter[Hashable] = Counter()
        self._unused = 0
        self._fresh = 0  # calls in a row with sizes that are not recorded yet
        self._freshest = 0  # the number of the last of them
        self.dropped = 0

    def __iter__(self) -> Iterator[KeyState]:
        """Least recently used first."""
        return iter([entry for _, entry in self._by_use()])

    def _by_use(self) -> list[tuple[Hashable, KeyState]]:
        return sorted(self._entries.items(), key=lambda item: item[1].used)

    def recordings(self) -> list[tuple[Hashable, Recording]]:
        """All of them, with their keys."""
        return [(key, recording) for key, entry in self._by_use() for recording in entry.recordings]

    def is_due(self, key: Hashable) -> bool:
        """Has this key come often enough to be recorded? If not, it is counted, and told if it goes on."""
        again = (1 << min(self._drops[key], MOST_DOUBLED)) - 1
        if self._asked[key] >= again + self._patience:
            self._asked.pop(key, None)
            return True
        if len(self._asked) > REMEMBERED:
            self._asked.clear()
        self._asked[key] += 1
        policy = self._compiled.policy
        is_warm_up = self._asked[key] <= policy.warm_up
        dropped = "its recording was dropped for others" if self._drops[key] else "new sizes"
        self._book.direct["warm-up" if is_warm_up and not self._drops[key] else dropped] += 1
        was_used = any(entry.used > self._freshest for entry in self._entries.values())
        self._fresh, self._freshest = (1 if was_used else self._fresh + 1), self.tick()
        if self._fresh >= MAX_NEW and policy.counts and not self.dropped:
            self._compiled.degradations.add(
                f"{MAX_NEW} calls in a row had new sizes, so the ops of its graph run one by one",
                next="pad to a few sizes",
                here=True,
            )
        return False

    def add(self, key: Hashable, entry: KeyState) -> None:
        """A new key; older ones make room."""
        while len(self._entries) >= self._compiled.policy.capture_limit:
            self._drop_oldest()
        entry.used = self.tick()
        self._entries[key] = entry

    def count(self) -> None:
        """Tell the book how many there are."""
        self._book.keys(len(self._entries))

    def keep_budget(self, newest: KeyState) -> None:
        """Drop what is too much for the memory that policy grants."""
        budget = self._compiled.policy.memory_budget
        if budget is None:
            return
        while len(self._entries) > 1 and self._bytes() > budget and next(iter(self)) is not newest:
            self._drop_oldest()

    def _bytes(self) -> int:
        return sum(recording.own_bytes for _, recording in self.recordings()) + self.home_bytes

    @property
    def home_bytes(self) -> int:
        """Of the memory for outputs that recordings share."""
        return sum(home.nbytes for home in {home for entry in self for home in entry.homes})

    def _drop_oldest(self) -> None:
        key, entry = self._by_use()[0]
        del self._entries[key]
        self.dropped += 1
        logger.info(
            "%s: %s is dropped, %d keys stay", self._compiled.name, format_key(key), len(self._entries)
        )
        if len(self._drops) > REMEMBERED:
            self._drops.clear()
        self._drops[key] += 1
        self._unused += not any(recording.replays for recording in entry.recordings)
        self.drop(entry, 0)
        self.count()
        if self._unused >= MAX_UNUSED:
            self._compiled.degradations.add(
                f"recordings are dropped before they are replayed: more sizes come than capture_limit "
                f"({self._compiled.policy.capture_limit}) keeps",
                next="pad to fewer sizes, or raise capture_limit",
                here=True,
            )

    def drop(self, entry: KeyState, keep: int) -> None:
        """Free the recordings of an entry but the newest few."""
        surplus = entry.recordings[: len(entry.recordings) - keep]
        entry.recordings = entry.recordings[len(surplus) :]
        self._free(surplus)

    def clear(self) -> None:
        """Nothing is recorded any more."""
        self._free([recording for _, recording in self.recordings()])
        self._entries.clear()
        self._book.forget()

    def _free(self, recordings: Sequence[Recording]) -> None:
        if not recordings:
            return
        self._compiled.row.synchronize(self._compiled.device)
        for recording in recordings:
            recording.drop()
