"""Reduce Python's garbage collection during work that creates almost no garbage."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

NEVER = 2**31 - 1
"""More collections of the young generation than ever happen."""


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection. Imported modules are not garbage, and collections would take a fifth of the
    time to import them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Postponed:
    """Postpones full collections until the last of several threads is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._before = 0

    def begin(self) -> None:
        with self._lock:
            self._threads += 1
            if self._threads == 1:
                young, middle, self._before = gc.get_threshold()
                gc.set_threshold(young, middle, NEVER)

    def end(self) -> None:
        with self._lock:
            self._threads -= 1
            young, middle, now = gc.get_threshold()
            if self._threads == 0 and now == NEVER:  # the user may have set another number
                gc.set_threshold(young, middle, self._before)


_POSTPONED = _Postponed()


@contextlib.contextmanager
def older_left_alone() -> Iterator[None]:
    """Postpone full collections. A compile would trigger them by the number of objects it creates. Each one
    scans the model and all modules, which takes a fifth of a second. Young objects are collected as usual,
    and all objects keep their generation. `gc.freeze` would move young objects to the oldest generation. The
    `gc.collect(1)` at the end of each Dynamo compile would then not find the cycles that Dynamo leaves: fake
    modes whose weak references to parameters make `torch.utils.swap_tensors` refuse these.
    """
    _POSTPONED.begin()
    try:
        yield
    finally:
        _POSTPONED.end()
