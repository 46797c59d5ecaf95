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


PAUSE_SECONDS = 3e-3  # between two calls
PAUSES = 30  # of one sample
ROW = 10  # calls that the device may fall behind


def host_seconds(call: Thunk, count: int, device: str) -> float:
    """Median seconds until a call returns, each after the device was waited for and the same pause: a loop
    that looks at each result calls like that. A pause cools the host's caches, so all must have the same.
    """
    samples = []
    for _ in range(min(count, PAUSES)):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
        wait(device)
        while time.perf_counter() < start + PAUSE_SECONDS:
            pass
    return statistics.median(samples)


def row_seconds(call: Thunk, count: int, device: str) -> float:
    """Median seconds per call of a few in a row: a loop that never waits for the device calls like that."""
    samples = []
    for _ in range(max(1, min(count, PAUSES * ROW) // ROW)):
        wait(device)
        start = time.perf_counter()
        for _ in range(ROW):
            call()
        samples.append((time.perf_counter() - start) / ROW)
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
            shift = turn % max(len(names), 1)
            for name in names[shift:] + names[:shift]:
                samples[name].append(timer(calls[name], counts[name], device))
    finally:
        gc.enable()
    return {name: statistics.median(values) for name, values in samples.items()}
