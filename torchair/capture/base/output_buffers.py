"""Homes: memory outside the pool, where recordings of one graph move their outputs.

No graph ever used a home as workspace, so an output there stays whatever is replayed. Recordings of different
keys share homes, as they run one after another: a hundred sizes take the memory of the largest. What a caller
still holds of a home stops every recording that writes there, so keys take turns between two homes; the
recordings of one key, which may all be held at once (layers that share a graph), have a home each. A home
lives as long as a recording that uses it; its memory, as long as a caller holds an output there.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from torchair.core.native.fast_replay import AtRest

TURNS = 2  # homes that keys take turns with, and recordings of one key while outputs are held


class OutputBuffer:
    """A block for each storage among the outputs of a recording."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.sizes = tuple(sizes)
        self.nbytes = sum(sizes)
        with torch.inference_mode(False):
            storages = [
                torch.empty(size, dtype=torch.uint8, device=device).untyped_storage() for size in sizes
            ]
        self.rest = AtRest(storages)

    def fits(self, sizes: Sequence[int]) -> bool:
        """Is there room for outputs of these sizes?"""
        return len(sizes) == len(self.sizes) and all(map(int.__le__, sizes, self.sizes))


@dataclass(frozen=True)
class MaxSizes:
    """Bytes that inputs and outputs take in the largest call to come, by their places; none where nobody
    knows.
    """

    inputs: Mapping[int, int] = field(default_factory=dict[int, int])
    outputs: Mapping[int, int] = field(default_factory=dict[int, int])

    def of_outputs(self, places: Sequence[int], nbytes: int) -> int:
        """For outputs of one storage, which take so many bytes in this call."""
        return max(nbytes, *(self.outputs.get(place, 0) for place in places))


def grown(need: int, had: int) -> int:
    """A block for so many bytes, beside one of another size: as large where that would do, and some more
    where it would not, as the next call may ask for more.
    """
    return had if need <= had else max(need, had * 3 // 2)


class OutputBufferPool:
    """Those of one graph."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: list[weakref.ref[OutputBuffer]] = []

    def find(
        self, sizes: Sequence[int], room: Sequence[int], taken: Collection[OutputBuffer]
    ) -> OutputBuffer:
        """A home for outputs of these sizes that none of `taken` is: free if possible (`has_room`). A new one
        has at least this room.
        """
        known = self._living()
        fitting, others = self._fitting(sizes, taken)
        free = next((home for home in others if home.rest.is_free()), None)
        if free is not None:
            return free
        if others and len(fitting) >= TURNS:
            return others[0]
        alike = [home.sizes for home in known if len(home.sizes) == len(room)]
        before = map(max, *alike) if len(alike) > 1 else alike[0] if alike else [0] * len(room)
        made = OutputBuffer(list(map(grown, room, before)), self._device)
        self._known.append(weakref.ref(made))
        return made

    def has_room(self, sizes: Sequence[int], taken: Collection[OutputBuffer]) -> bool:
        """Is the home that would be found free, or new?"""
        fitting, others = self._fitting(sizes, taken)
        return not others or len(fitting) < TURNS or any(home.rest.is_free() for home in others)

    def _fitting(
        self, sizes: Sequence[int], taken: Collection[OutputBuffer]
    ) -> tuple[list[OutputBuffer], list[OutputBuffer]]:
        """Those that are large enough, and those of them that are not taken."""
        fitting = [home for home in self._living() if home.fits(sizes)]
        return fitting, [home for home in fitting if home not in taken]

    def _living(self) -> list[OutputBuffer]:
        homes = [home for known in self._known if (home := known()) is not None]
        self._known = [weakref.ref(home) for home in homes]
        return homes
