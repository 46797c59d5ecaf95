"""Streams in an order of their own, and a look at whether that order matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchair.core.errors import BadCall, BadOption
from torchair.sim.install import is_installed
from torchair.sim.load import shim

SEEDS = 1 << 64


@contextmanager
def interleaved(seed: int) -> Iterator[None]:
    """Within this block streams run beside each other: what they are given waits in queues, and lots that
    begin with `seed` say who goes on next. The same seed gives the same order. What the host waits for (a
    result, `synchronize`) is done before it goes on, and at the end of the block all is.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise BadOption("seed must be a number from 0 to 2**64 - 1", got=repr(seed))
    _check_installed()
    shim().begin_order(seed)
    try:
        yield
    finally:
        shim().end_order()


@contextmanager
def races_checked() -> Iterator[None]:
    """Within this block, an op that reads or writes memory while another stream may still write or read it is
    an error, in whatever order they happen to run. It names both ops, their streams, and the wait that is
    missing.
    """
    _check_installed()
    shim().check_races(True)
    try:
        yield
    finally:
        shim().check_races(False)


def _check_installed() -> None:
    if not is_installed():
        raise BadCall("there is no simulated device", next="torchair.sim.install()")
