"""List reference ops: on a device they write into an input, which is then one of their outputs."""

from __future__ import annotations

from collections.abc import Iterator

from torchair.ge.graph import Op

_FIRST = (
    "Scatter",
    "QuantUpdateScatter",
    "ScatterNdUpdate",
    "FfnWorkerScheduler",
    "AttentionWorkerScheduler",
)
_ALIASES: dict[str, dict[int, int]] = {
    **{name: {0: 0} for name in _FIRST},
    "ScatterPaKvCache": {0: 1, 1: 4},
    "MlaPrologV3": {2: 9, 3: 10},
    "KvRmsNormRopeCache": {0: 5, 1: 6},
    "QkvRmsNormRopeCache": {0: 6, 1: 7, 2: 8},
    "GatherSelectionKvCache": {0: 0, 1: 1, 2: 2, 3: 3},
    "RecurrentGatedDeltaRule": {1: 4},
}
"""Output index -> index of the input that it aliases."""


def aliases(op: Op) -> Iterator[tuple[int, int]]:
    """Yield the (output, input slot) pairs that share memory on a device."""
    found = {i: i for i in range(len(op.outputs))} if op.type == "ScatterList" else _ALIASES.get(op.type, {})
    for output, slot in found.items():
        if output < len(op.outputs) and slot < len(op.slots) and op.slots[slot].tensor is not None:
            yield output, slot
