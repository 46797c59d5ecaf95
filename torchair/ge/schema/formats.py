"""Define image formats: which descriptors of an op are NCHW or NCDHW, from which an engine finds its
channels.

All other descriptors are ND. Data are in torch's order whatever the format.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchair.ge.attr import Layouts
from torchair.ge.graph import Op, Tensor

SLOTS = Path(__file__).parents[1] / "opdefs" / "image_slots.json"
"""Op -> the inputs and the outputs that are images."""
BY_RANK = {4: "NCHW", 5: "NCDHW"}
INPUTS, OUTPUTS = "input_layout_info", "output_layout_info"


@functools.cache
def image_slots() -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Load the table."""
    return {name: (inputs, outputs) for name, (inputs, outputs) in json.loads(SLOTS.read_text()).items()}


def mark(op: Op) -> None:
    """Set the formats of image descriptors."""
    for name, layouts in formats_of(op).items():
        op.attrs[name] = Layouts(layouts)


def formats_of(op: Op) -> dict[str, list[tuple[int, str]]]:
    """Return the content of the two format attributes: (index of the descriptor, format)."""
    if op.type not in image_slots():
        return {}
    inputs, outputs = image_slots()[op.type]
    found = {
        INPUTS: _listed(inputs, ((slot.name, slot.tensor) for slot in op.slots)),
        OUTPUTS: _listed(outputs, ((tensor.desc.name, tensor) for tensor in op.outputs)),
    }
    return {name: layouts for name, layouts in found.items() if layouts}


def _listed(names: Sequence[str], slots: Iterable[tuple[str, Tensor | None]]) -> list[tuple[int, str]]:
    return [
        (number, BY_RANK[tensor.meta.ndim])
        for number, (name, tensor) in enumerate(slots)
        if name in names and tensor is not None and tensor.meta is not None and tensor.meta.ndim in BY_RANK
    ]
