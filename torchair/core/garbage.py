"""Python's search for garbage, kept out of work that leaves next to none."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
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


@contextlib.contextmanager
def older_left_alone() -> Iterator[None]:
    """What stands already is not searched meanwhile, only what is made inside: a compile makes so many
    objects that the model and all modules would be searched with them, a fifth of a second each time. Who
    calls `gc.freeze` inside finds that undone: counting what is aside takes 40 ms.
    """
    is_ours = not gc.get_freeze_count()  # what others have put aside stays there
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()
