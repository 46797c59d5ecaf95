"""What is kept out of Python's search for garbage, and for how long."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import pytest

from torchair.core.garbage import older_left_alone, uncollected


@pytest.fixture(autouse=True)
def nothing_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_stands_is_left_alone_meanwhile() -> None:
    with contextlib.suppress(KeyError), older_left_alone():
        assert gc.get_freeze_count() > 1000
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_others_have_put_aside_stays_there() -> None:
    gc.freeze()
    with older_left_alone():
        pass
    assert gc.get_freeze_count() > 1000


@pytest.mark.parametrize("was_on", [True, False])
def test_the_search_is_on_or_off_as_before(was_on: bool) -> None:
    try:
        if not was_on:
            gc.disable()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
