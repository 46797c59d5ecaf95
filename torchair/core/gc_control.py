"""Python's search for garbage, kept out of work that leaves next to none."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

NEVER = 2**31 - 1
"""More young collections than there are."""


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Nothing is searched meanwhile: modules are no garbage, and a fifth of the time it takes to load ours
    would go into looking for some.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Postponed:
    """Full collections that wait until the last of several threads is done."""

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
            if self._threads == 0 and now == NEVER:  # another number is the user's
                gc.set_threshold(young, middle, self._before)


_POSTPONED = _Postponed()


@contextlib.contextmanager
def older_left_alone() -> Iterator[None]:
    """Postpone full collections, which a compile would cause by the number of objects that it makes: each
    searches the model and all modules, a fifth of a second each time. Young objects are searched as ever, and
    all objects keep their generation. `gc.freeze` would move the young to the oldest one, where the
    `gc.collect(1)` that ends each compile of Dynamo's does not find cycles that Dynamo has left: fake modes,
    whose weak references to parameters make `torch.utils.swap_tensors` refuse these.
    """
    _POSTPONED.begin()
    try:
        yield
    finally:
        _POSTPONED.end()
