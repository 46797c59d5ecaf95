"""Provide marks and ranges for the profiler."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from torch.profiler import record_function

_numbers = itertools.count(1)
_ranges: dict[int, record_function] = {}


def mark(message: str, stream: Any = None, domain: str = "default") -> None:
    """Mark a point in time."""
    with record_function(message):
        pass


def range_start(message: str, stream: Any = None, domain: str = "default") -> int:
    """Begin a range and return its number."""
    number = next(_numbers)
    _ranges[number] = record_function(message)
    _ranges[number].__enter__()
    return number


def range_end(range_id: int, domain: str = "default") -> None:
    """End the range with this number."""
    found = _ranges.pop(range_id, None)
    if found is None:
        raise ValueError(f"there is no open range {range_id}")
    found.__exit__(None, None, None)


@contextlib.contextmanager
def mstx_range(message: str, stream: Any = None, domain: str = "default") -> Iterator[None]:
    """Add a range around a block or, as a decorator, around a function."""
    with record_function(message):
        yield
