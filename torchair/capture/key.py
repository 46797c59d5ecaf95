"""The key of a call: the numbers that pick one of the recordings of an FX graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any

from torchair.capture.roles import KeyPart

NO_SYMBOLS = "no_updated_input"


def key_function(parts: Sequence[KeyPart]) -> Callable[[Sequence[Any]], Hashable]:
    """A function from the arguments of a call to its key; the fastest one for this graph."""
    if not parts:
        return lambda args: NO_SYMBOLS
    if all(isinstance(part, int) for part in parts):
        return itemgetter(*parts)
    scalars = [part for part in parts if isinstance(part, int)]
    sizes = [part for part in parts if isinstance(part, tuple)]
    return lambda args: (*[args[i] for i in scalars], *[args[i].shape[dim] for i, dim in sizes])


def key_text(key: Hashable) -> str:
    """The key as it is shown in logs and reports."""
    if key == NO_SYMBOLS:
        return NO_SYMBOLS
    return str(list(key)) if isinstance(key, tuple) else str([key])
