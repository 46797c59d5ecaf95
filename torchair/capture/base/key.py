"""The key of a call: the numbers that select one of the recordings of an FX graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any

from torchair.capture.base.inputs import KeyPart
from torchair.fxgraph.value_keys import number_key

NO_SYMBOLS = "no_updated_input"

_READ: dict[str, Callable[[Any, int], Hashable]] = {
    "int": lambda number, dim: number,
    "number": lambda number, dim: number_key(number),
    "size": lambda tensor, dim: tensor.size(dim),
    "stride": lambda tensor, dim: tensor.stride(dim),
}


def key_function(parts: Sequence[KeyPart]) -> Callable[[Sequence[Any]], Hashable]:
    """Return the fastest function for this graph from the arguments of a call to its key."""
    if not parts:
        return lambda args: NO_SYMBOLS
    if all(part.what == "int" for part in parts):
        return itemgetter(*(part.index for part in parts))
    rows = [(part.index, _READ[part.what], part.dim) for part in parts]
    return lambda args: tuple([read(args[index], dim) for index, read, dim in rows])


def format_key(key: Hashable) -> str:
    """Return the key as logs and reports show it."""
    if key == NO_SYMBOLS:
        return NO_SYMBOLS
    return str(list(key)) if isinstance(key, tuple) else str([key])
