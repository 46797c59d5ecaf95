"""Random programs that eight threads call while their optimized programs take over."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import pytest
import torch

import torchair
from tests.fuzz.oracle import Failure, Seen, Swap, backend_of, compare, observe
from tests.fuzz.programs import MODES, Program, any_program
from tests.fuzz.simulated import AnyLayout
from tests.support.slow import slow
from torchair.backend.service.scheduler import SCHEDULER
from torchair.devices import get_device, installed

pytestmark = pytest.mark.usefixtures("builds")
THREADS = 8
ROUNDS = 4


def swapped_in_threads(program: Program, want: list[Seen], swap: Swap, first_here: bool) -> list[Failure]:
    """Call the program in threads, and return what differs from eager. The optimized programs are built once
    each thread has made its first round of calls.
    """
    run = torch.compile(program.function(), backend=backend_of(program, "auto"), dynamic=program.dynamic)
    found: list[Failure] = []
    began = threading.Semaphore(0)
    if first_here:
        found += filter(None, [compare(want, observe(run, program))])

    def call() -> None:
        try:
            for _ in range(ROUNDS):
                failure = compare(want, observe(run, program))
                found.extend([] if failure is None else [failure])
                began.release()
        finally:
            began.release()

    with ThreadPoolExecutor(THREADS) as pool:
        calls = [pool.submit(call) for _ in range(THREADS)]
        for _ in calls:
            assert began.acquire(timeout=600), "a thread did not come so far"
        swap.build()
        for each in calls:
            each.result()
    assert SCHEDULER.wait(600)
    found += filter(None, [compare(want, observe(run, program))])
    return found


@pytest.mark.parametrize(("mode", "count"), [(MODES[1], 2), *(slow(mode, 40) for mode in MODES)])
def test_every_result_of_every_thread_is_eagers(mode: str, count: int) -> None:
    taken = 0
    for seed in range(count):
        program = replace(any_program(Random(seed), mode), careless=False)
        want = observe(program.function(), program)
        torch.compiler.reset()
        swap = Swap(program, "auto-eager")
        row = AnyLayout() if program.simulated else get_device(torch.device("cpu"))
        with installed(row), swap.watched(), warnings.catch_warnings():
            warnings.simplefilter("ignore", torchair.DegradedWarning)  # more layouts than are recorded
            found = swapped_in_threads(program, want, swap, first_here=seed % 2 == 0)
        assert not found, f"seed {seed}: {found[0]}\n{program.script('auto')}"
        taken += swap.taken
    assert taken
