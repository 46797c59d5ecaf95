"""Many threads call one graph while its program is swapped and its recordings are dropped for others."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.cuda import CUDAGraph

import torchair
from tests.backend.pipeline.test_tiered import Quick, compile_tiered
from tests.support.simulated_device import SimulatedDevice
from torchair.backend.service import scheduler
from torchair.backend.service.scheduler import SCHEDULER
from torchair.capture.base.pending_program import PendingProgram, SwappableProgram
from torchair.capture.recording.memory_pool import LaunchOrder

pytestmark = pytest.mark.usefixtures("builds")
THREADS = 8


class Waits:
    """A lock that counts how long threads waited for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.seconds = 0.0
        self.longest = 0.0

    def acquire(self, blocking: bool = True) -> bool:
        began = time.perf_counter()
        is_mine = self._lock.acquire(blocking)
        waited = time.perf_counter() - began
        self.seconds += waited
        self.longest = max(self.longest, waited)
        return is_mine

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> list[Waits]:
    made: list[Waits] = []
    init = LaunchOrder.__init__

    def watched(turns: LaunchOrder, *args: Any) -> None:
        init(turns, *args)
        made.append(Waits(turns.lock))
        turns.lock = made[-1]  # type: ignore[assignment]

    monkeypatch.setattr(LaunchOrder, "__init__", watched)
    return made


@pytest.fixture
def builds_later(monkeypatch: pytest.MonkeyPatch) -> Iterator[Quick]:
    made = Quick()
    made.gate.clear()
    monkeypatch.setattr(scheduler, "compile_in_worker", made)
    yield made
    made.gate.set()
    assert SCHEDULER.wait(60)


def called_by_many(device: str, calls: int, builds: Quick, captures: Callable[[], int]) -> list[str]:
    """What was wrong in so many calls, in the midst of which the better program comes."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval().to(device)
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.debug.aclgraph.static_capture_size_limit = 3  # of five sizes, two are always dropped
    run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)
    wrong: list[str] = []
    is_third = threading.Semaphore(0)

    def call(number: int) -> None:
        with torch.no_grad():
            for step in range(calls // THREADS):
                rows = 2 + (number * 7 + step // 50) % 5
                x = torch.full((rows, 4), float(number + step % 13), device=device)
                if not torch.allclose(run(x), model(x), atol=1e-5):
                    wrong.append(f"thread {number}, call {step}")
                if step == calls // THREADS // 3:
                    is_third.release()

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", torchair.DegradedWarning)  # more sizes than are kept
        for rows in (3, 4):
            run(torch.randn(rows, 4, device=device))
        with ThreadPoolExecutor(THREADS) as pool:
            threads = [pool.submit(call, number) for number in range(THREADS)]
            for _ in threads:
                assert is_third.acquire(timeout=300), "a thread has not come so far"
            captured = captures()
            builds.gate.set()
        for thread in threads:
            thread.result()
    assert len(builds.made) == 1
    assert captures() > captured, "recorded anew, with the better program"
    return wrong


@pytest.mark.parametrize("calls", [2_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_every_result_is_right(calls: int, row: SimulatedDevice, builds_later: Quick) -> None:
    assert not called_by_many("cpu", calls, builds_later, lambda: row.captures)


@pytest.mark.cuda
def test_every_result_is_right_on_a_gpu(locks: list[Waits], builds_later: Quick) -> None:
    """How long threads wait for each other is printed."""
    made: list[Any] = []
    record = CUDAGraph.capture_end
    with mock.patch.object(CUDAGraph, "capture_end", lambda graph: made.append(1) or record(graph)):
        assert not called_by_many("cuda", 100_000, builds_later, lambda: len(made))
    print(f"{sum(each.seconds for each in locks) / 100:.3f} ms a call")


def test_calls_do_not_wait_for_a_build(locks: list[Waits], row: SimulatedDevice, builds_later: Quick) -> None:
    """A build that takes half a second: calls go on meanwhile."""
    run = compile_tiered(nn.Linear(4, 4).eval(), "npugraph_ex")
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            run(x)
        while not builds_later.orders:
            time.sleep(0.01)
        began, calls = time.perf_counter(), 0
        while time.perf_counter() - began < 0.5:
            run(x)
            calls += 1
    assert not builds_later.made, "it is still being built"
    assert calls > 50
    assert max(each.longest for each in locks) < 0.4


class Overtaken(SwappableProgram):
    """Another thread takes the optimized program between any two reads of what is pending."""

    _next: Any = None

    @property
    def _pending(self) -> PendingProgram | None:
        given, self._next = self._next, None
        return given

    @_pending.setter
    def _pending(self, value: PendingProgram | None) -> None:
        self._next = value


class Ready(PendingProgram):
    """An optimized program that is there."""

    def take(self) -> Any:
        return lambda args: [2]


def test_another_thread_may_take_the_program_meanwhile() -> None:
    ready = Ready()
    ready.is_done.set()
    first: Any = lambda args: [1]  # noqa: E731
    program = Overtaken(first, ready)
    assert program([]) == [2]
    assert program([]) == [2]
