"""Check programs on a simulated device: run streams in random order, detect data races between streams, and
detect memory that is used before it is written or after it is freed.
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
    """Context manager that runs streams concurrently, in an order that depends on the seed.

    The work of streams waits in queues, and a random generator with the seed selects the next stream. The
    same seed gives the same order. If the host waits for a result or calls `synchronize`, that work finishes
    first. At the end of the block, all work finishes.

    Args:
        seed: Seed of the order, from 0 to 2**64 - 1.

    Raises:
        BadOption: `seed` is out of range.
        BadCall: No simulated device is installed.

    Example:
        >>> with torchair.sim.interleaved(seed=1):
        ...     y = model(x)
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
    """Context manager that detects data races between streams, independent of the actual order.

    An op raises an error if it accesses memory that another stream may still write, or writes memory that
    another stream may still read. The error names both ops, their streams, and the missing wait.

    Raises:
        RuntimeError: An op of the block has a data race.
        BadCall: No simulated device is installed.
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
    """Context manager that detects uses of uninitialized and freed memory.

    Inside the block, an op raises an error if it reads memory that was allocated in the block and never
    written, or uses a tensor with freed storage. The error names the op, its line and the tensor. Ops inside
    of graphs are not checked; inputs of compiled graphs must be initialized unless the graph writes them.
    Together with `races_checked`, the next op also raises if memory is freed while another stream may still
    use it (a missing `record_stream`).

    Raises:
        RuntimeError: An op of the block uses uninitialized or freed memory.
        BadCall: No simulated device is installed.
    """
    check_installed()
    shim().check_memory(True)
    try:
        yield
    finally:
        shim().check_memory(False)
