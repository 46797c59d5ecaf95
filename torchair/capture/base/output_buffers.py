"""Output buffers: memory outside the graph pool to which recordings of one graph copy their outputs.

Graphs never use an output buffer as workspace, so replaying another graph does not overwrite the outputs in
it. Recordings of different keys share output buffers, because they run one after another: a hundred sizes
take the memory of the largest. An output that a caller still holds blocks every recording that writes to its
buffer, so keys alternate between two buffers. Recordings of one key may all be held at the same time (layers
that share a graph), so each has its own buffer. A buffer lives as long as a recording that uses it; its
memory lives as long as a caller holds an output there.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from torchair.core.native.fast_replay import OutputLease

BUFFERS_PER_KEY = 2  # output buffers that keys share, and recordings of one key while outputs are held


class OutputBuffer:
    """One memory block for each storage among the outputs of a recording."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.sizes = tuple(sizes)
        self.nbytes = sum(sizes)
        with torch.inference_mode(False):
            storages = [
                torch.empty(size, dtype=torch.uint8, device=device).untyped_storage() for size in sizes
            ]
        self.rest = OutputLease(storages)

    def fits(self, sizes: Sequence[int]) -> bool:
        """Return whether outputs of these sizes fit."""
        return len(sizes) == len(self.sizes) and all(map(int.__le__, sizes, self.sizes))


@dataclass(frozen=True)
class MaxSizes:
    """Bytes of the inputs and outputs of the largest expected call, by position; empty if it is not known."""

    inputs: Mapping[int, int] = field(default_factory=dict[int, int])
    outputs: Mapping[int, int] = field(default_factory=dict[int, int])

    def of_outputs(self, places: Sequence[int], nbytes: int) -> int:
        """Return the bytes to reserve for outputs that share a storage and take `nbytes` in this call."""
        return max(nbytes, *(self.outputs.get(place, 0) for place in places))


def grow_size(need: int, had: int) -> int:
    """Return the size of a block for `need` bytes. If the size `had` of the other block is too small, grow by
    at least half, because the next call may need more.
    """
    return had if need <= had else max(need, had * 3 // 2)


class OutputBufferPool:
    """The output buffers of one graph."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: list[weakref.ref[OutputBuffer]] = []

    def find(
        self, sizes: Sequence[int], room: Sequence[int], taken: Collection[OutputBuffer]
    ) -> OutputBuffer:
        """Return an output buffer for outputs of these sizes that is not in `taken`, a free one if possible
        (`has_free_buffer`). A new buffer has at least the sizes `room`.
        """
        known = self._living()
        fitting, others = self._fitting(sizes, taken)
        free = next((buffer for buffer in others if buffer.rest.is_free()), None)
        if free is not None:
            return free
        if others and len(fitting) >= BUFFERS_PER_KEY:
            return others[0]
        alike = [buffer.sizes for buffer in known if len(buffer.sizes) == len(room)]
        before = map(max, *alike) if len(alike) > 1 else alike[0] if alike else [0] * len(room)
        made = OutputBuffer(list(map(grow_size, room, before)), self._device)
        self._known.append(weakref.ref(made))
        return made

    def has_free_buffer(self, sizes: Sequence[int], taken: Collection[OutputBuffer]) -> bool:
        """Return whether `find` would return a free or a new buffer."""
        fitting, others = self._fitting(sizes, taken)
        return not others or len(fitting) < BUFFERS_PER_KEY or any(buffer.rest.is_free() for buffer in others)

    def _fitting(
        self, sizes: Sequence[int], taken: Collection[OutputBuffer]
    ) -> tuple[list[OutputBuffer], list[OutputBuffer]]:
        """Return the buffers that are large enough, and those of them that are not taken."""
        fitting = [buffer for buffer in self._living() if buffer.fits(sizes)]
        return fitting, [buffer for buffer in fitting if buffer not in taken]

    def _living(self) -> list[OutputBuffer]:
        buffers = [buffer for known in self._known if (buffer := known()) is not None]
        self._known = [weakref.ref(buffer) for buffer in buffers]
        return buffers
