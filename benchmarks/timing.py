"""How time is measured: interleaved rounds in rotated order, medians.

Columns take turns within each round, so a slow second of the machine hits all of them; the order turns by one
place per round, so nobody always runs after the same neighbour.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch

Thunk = Callable[[], object]


def wait(device: str) -> None:
    """Until the device has done everything it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def step_seconds(call: Thunk, count: int, device: str) -> float:
    """Seconds per call over `count` calls in a row, device work included."""
    wait(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    wait(device)
    return (time.perf_counter() - start) / count


BUSY_CYCLES = 200_000  # about a tenth of a millisecond


def host_seconds(call: Thunk, count: int, device: str) -> float:
    """Median seconds until a call returns, after the device was busy and the host waited for it: the host's
    share. Without the work before, a column that launches nothing would run from warmer caches than the rest.
    """
    samples = []
    for _ in range(count):
        if device == "cuda":
            torch.cuda._sleep(BUSY_CYCLES)
        wait(device)
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    wait(device)
    return statistics.median(samples)


def repeats(call: Thunk, device: str, sample_seconds: float) -> int:
    """How many calls fill one sample."""
    once = min(step_seconds(call, 1, device) for _ in range(3))
    return max(1, min(2000, int(sample_seconds / max(once, 1e-7))))


def measure(
    calls: dict[str, Thunk],
    device: str,
    rounds: int,
    sample_seconds: float = 0.05,
    timer: Callable[[Thunk, int, str], float] = step_seconds,
) -> dict[str, float]:
    """Median seconds per call for each named call."""
    counts = {name: repeats(call, device, sample_seconds) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                samples[name].append(timer(calls[name], counts[name], device))
    finally:
        gc.enable()
    return {name: statistics.median(values) for name, values in samples.items()}
