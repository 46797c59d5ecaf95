"""The recordings of one graph by key: which keys are recorded, and which are evicted."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence

from torchair.capture.base.compiled_program import CompiledProgram
from torchair.capture.base.key import format_key
from torchair.capture.base.output_buffers import BUFFERS_PER_KEY, OutputBuffer
from torchair.capture.base.pending_program import PendingProgram
from torchair.capture.base.stats import CaptureStats
from torchair.capture.recording.outputs import OutputSize
from torchair.capture.recording.recording import Recording
from torchair.core.log import capture_logger as logger
from torchair.core.native.fast_replay import Repeat
from torchair.core.program import Program

MAX_NEW_SIZES = 32  # calls in a row with sizes that are not recorded before a warning
MAX_UNUSED = 8  # recordings dropped before they are replayed before a warning
REMEMBERED = 4096  # dropped keys that are remembered
MOST_DOUBLED = 10  # maximum number of times that the required calls of a dropped key double


class KeyState:
    """The recordings of one key, and the program they record."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pending: PendingProgram | None = None  # optimized program that is not ready
        self.better: Program | None = None  # optimized program that is ready
        self.recordings: list[Recording] = []
        self.repeats: tuple[Repeat, ...] = ()  # of recordings that may serve the next call, in this order
        self.used = 0  # number of the last use; later uses have higher numbers
        self.moves = 0
        self.unprofitable_recaptures = 0  # in a row
        # Input addresses of calls that ran directly because an input had moved. If they repeat, they are
        # recorded.
        self.direct_addresses: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self.own_buffers = False  # plain inputs need buffers of their own
        self.output_sizes: list[OutputSize] = []  # memory for its outputs
        self.draws = False  # running it advances the random generator

    def enable_fast_path(self, latest: Recording) -> None:
        """Enable the fast path for the next call. It may use the recording that served this call, or one that
        alternates with it. Recordings that copy their outputs come last, for calls while all others are held.
        """
        latest_first = [latest, *(each for each in reversed(self.recordings) if each is not latest)]
        found = sorted(latest_first[: BUFFERS_PER_KEY + 1], key=lambda each: each.private)
        self.repeats = () if latest.repeat is None else tuple(each.repeat for each in found if each.repeat)

    @property
    def sizes(self) -> list[int]:
        """Bytes of its outputs, by storage."""
        return [need.nbytes for need in self.output_sizes]

    @property
    def output_buffers(self) -> list[OutputBuffer]:
        """Output buffers of its recordings outside the pool."""
        return [recording.home for recording in self.recordings if recording.home is not None]


class RecordingCache:
    """An LRU cache of recordings. A key is recorded after the number of calls that the policy sets. A key
    that was dropped needs one more call, and twice as many each further time. Lookups need no lock.
    """

    def __init__(self, compiled: CompiledProgram, stats: CaptureStats) -> None:
        self._compiled = compiled
        self._stats = stats
        policy = compiled.policy
        self._calls_before_recording = policy.warm_up + (policy.patience if compiled.inputs.key else 0)
        self._entries: dict[Hashable, KeyState] = {}
        self.find = self._entries.get
        """Return the entry of a key, or None."""
        self.tick = itertools.count(1).__next__
        """Return the number of the next use."""
        self._drops: Counter[Hashable] = Counter()
        self._asked: Counter[Hashable] = Counter()
        self._unused = 0
        self._fresh = 0  # calls in a row with sizes that are not recorded yet
        self._freshest = 0  # the number of the last of them
        self.dropped = 0

    def __iter__(self) -> Iterator[KeyState]:
        """Yield the entries, least recently used first."""
        return iter([entry for _, entry in self._by_use()])

    def _by_use(self) -> list[tuple[Hashable, KeyState]]:
        return sorted(self._entries.items(), key=lambda item: item[1].used)

    def recordings(self) -> list[tuple[Hashable, Recording]]:
        """Return all recordings with their keys."""
        return [(key, recording) for key, entry in self._by_use() for recording in entry.recordings]

    def should_record(self, key: Hashable) -> bool:
        """Return whether this key came often enough to be recorded. If not, count the call, and warn if it
        goes on.
        """
        again = (1 << min(self._drops[key], MOST_DOUBLED)) - 1
        if self._asked[key] >= again + self._calls_before_recording:
            self._asked.pop(key, None)
            return True
        if len(self._asked) > REMEMBERED:
            self._asked.clear()
        self._asked[key] += 1
        policy = self._compiled.policy
        is_warm_up = self._asked[key] <= policy.warm_up
        dropped = "its recording was dropped for others" if self._drops[key] else "new sizes"
        self._stats.direct["warm-up" if is_warm_up and not self._drops[key] else dropped] += 1
        was_used = any(entry.used > self._freshest for entry in self._entries.values())
        self._fresh, self._freshest = (1 if was_used else self._fresh + 1), self.tick()
        if self._fresh >= MAX_NEW_SIZES and policy.counts and not self.dropped:
            self._compiled.degradations.add(
                f"{MAX_NEW_SIZES} calls in a row had new sizes, so their ops run one by one",
                next="pad inputs to a few sizes",
                here=True,
            )
        return False

    def add(self, key: Hashable, entry: KeyState) -> None:
        """Add a new key, and evict older ones if the cache is full."""
        while len(self._entries) >= self._compiled.policy.capture_limit:
            self._drop_oldest()
        entry.used = self.tick()
        self._entries[key] = entry

    def count(self) -> None:
        """Write the number of keys to the statistics."""
        self._stats.keys(len(self._entries))

    def evict_to_budget(self, newest: KeyState) -> None:
        """Evict entries until the recordings fit the memory budget of the policy."""
        budget = self._compiled.policy.memory_budget
        if budget is None:
            return
        while len(self._entries) > 1 and self._bytes() > budget and next(iter(self)) is not newest:
            self._drop_oldest()

    def _bytes(self) -> int:
        return sum(recording.own_bytes for _, recording in self.recordings()) + self.home_bytes

    @property
    def home_bytes(self) -> int:
        """Bytes of the output buffers that recordings share."""
        return sum(home.nbytes for home in {home for entry in self for home in entry.output_buffers})

    def _drop_oldest(self) -> None:
        key, entry = self._by_use()[0]
        del self._entries[key]
        self.dropped += 1
        logger.info(
            "%s: dropped the recordings of key %s, %d keys remain",
            self._compiled.name,
            format_key(key),
            len(self._entries),
        )
        if len(self._drops) > REMEMBERED:
            self._drops.clear()
        self._drops[key] += 1
        self._unused += not any(recording.replays for recording in entry.recordings)
        self.drop(entry, 0)
        self.count()
        if self._unused >= MAX_UNUSED:
            self._compiled.degradations.add(
                f"recordings are dropped before they are replayed: there are more sizes than capture_limit "
                f"({self._compiled.policy.capture_limit}) allows",
                next="pad inputs to fewer sizes, or raise capture_limit",
                here=True,
            )

    def drop(self, entry: KeyState, keep: int) -> None:
        """Free the recordings of an entry except the newest `keep`."""
        surplus = entry.recordings[: len(entry.recordings) - keep]
        entry.recordings = entry.recordings[len(surplus) :]
        self._free(surplus)

    def clear(self) -> None:
        """Free all recordings: nothing is recorded any more."""
        self._free([recording for _, recording in self.recordings()])
        self._entries.clear()
        self._stats.forget()

    def _free(self, recordings: Sequence[Recording]) -> None:
        if not recordings:
            return
        self._compiled.row.synchronize(self._compiled.device)
        for recording in recordings:
            recording.drop()
