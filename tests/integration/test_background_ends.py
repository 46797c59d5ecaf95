"""However a process ends in the middle of a background build: no traceback, no folder, no process stays."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.background_ends import ENDS, Zygote
from torchair.core.processes.supervisor import collect, processes

SEED = int(os.environ.get("TORCHAIR_TEST_SEED", "20261119"))
STATUS = {
    "SIGTERM": -signal.SIGTERM,
    "SIGKILL": -signal.SIGKILL,
    "SIGHUP": -signal.SIGHUP,
    "everything is killed": -signal.SIGKILL,
}
LATE = 2.0
"""Seconds after which a fake build has begun, however busy the machine is."""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


def left(folder: Path) -> list[str]:
    """The processes that know of this folder."""
    found: list[str] = []
    for row in processes():
        place = Path(f"/proc/{row.pid}")
        try:
            known = place.joinpath("cmdline").read_bytes() + place.joinpath("environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in known and not row.is_dead:
            found.append(known[:200].decode(errors="replace"))
    return found


def check(zygote: Zygote, folder: Path, end: str, seconds: float, *, is_fake: bool = True) -> None:
    """One round."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    status = zygote.ask(end=end, seconds=seconds, folder=str(folder), is_fake=is_fake)
    said = (folder / "said").read_text()
    assert (status, said) == (STATUS.get(end, 0), ""), (end, seconds)
    limit = time.monotonic() + 30
    while (left(folder) or list(temporary.iterdir())) and time.monotonic() < limit:
        if end == "everything is killed":
            collect(temporary)  # as the next start does
        time.sleep(0.02)
    assert not left(folder), (end, seconds)
    assert not list(temporary.iterdir()), (end, seconds)


@pytest.mark.parametrize("end", ENDS)
def test_process_end_during_build_leaves_nothing(end: str, zygote: Zygote, tmp_path: Path) -> None:
    check(zygote, tmp_path, end, 0.4)


def sweep(zygote: Zygote, folder: Path, rounds: int, seconds: float, *, is_fake: bool) -> None:
    """Random ends at random moments; the seed is printed."""
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    for number in range(rounds):
        end, moment = chance.choice(list(ENDS)), chance.uniform(0, seconds)
        check(zygote, folder / str(number), end, moment, is_fake=is_fake)


@pytest.mark.full
def test_process_ends_at_random_times_leave_nothing(zygote: Zygote, tmp_path: Path) -> None:
    sweep(zygote, tmp_path, 300, LATE, is_fake=True)


@pytest.mark.full
def test_random_ends_of_real_builds(zygote: Zygote, tmp_path: Path) -> None:
    sweep(zygote, tmp_path, 20, 20.0, is_fake=False)
