"""What a simulated device can be asked to show: streams in an order of their own, whether that order matters,
and memory that is used before it is written or after it is given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchair.core.errors import BadOption
from torchair.sim.install import check_installed
from torchair.sim.native import shim

SEEDS = 1 << 64


@contextmanager
def interleaved(seed: int) -> Iterator[None]:
    """Within this block streams run beside each other: what they are given waits in queues, and lots that
    begin with `seed` say who goes on next. The same seed gives the same order. What the host waits for (a
    result, `synchronize`) is done before it goes on, and at the end of the block all is.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise BadOption("seed must be a number from 0 to 2**64 - 1", got=repr(seed))
    check_installed()
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
    check_installed()
    shim().check_races(True)
    try:
        yield
    except BaseException:
        shim().check_races(False)
        raise
    left = shim().check_races(False)
    if left:
        raise RuntimeError(left)


@contextmanager
def memory_checked() -> Iterator[None]:
    """Within this block, reading memory that was taken in it and that nothing was written to is an error, and
    so is using a tensor whose storage was given back. It names the op, its line and the tensor. What graphs
    do inside is not seen; inputs of compiled ones must be written, unless they write them. Together with
    `races_checked`, giving memory back while another stream may still use it (`record_stream` is missing) is
    an error too, with the next op.
    """
    check_installed()
    shim().check_memory(True)
    try:
        yield
    finally:
        shim().check_memory(False)
