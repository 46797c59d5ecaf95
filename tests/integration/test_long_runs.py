"""Long runs: no growth, no drift, right results from many threads."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.simulated_device import CPU, SimulatedDevice, make
from torchair.core.errors import DegradedWarning
from torchair.devices import get_device


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def host_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def device_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved() if device.type == "cuda" else 0


def small(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    return [(x * weight).sum(0) + 1]


@pytest.mark.full
def test_a_million_replays(device: torch.device) -> None:
    runner, _ = make(small, "pw", device=device, row=get_device(device))
    call = runner.boxed
    x, weight = torch.arange(6.0, device=device).view(2, 3), torch.full((3,), 2.0, device=device)
    want = small(x, weight)[0].tolist()
    for _ in range(20_000):
        call([x, weight])
    gc.collect()
    host, on_device = host_bytes(), device_bytes(device)
    for number in range(1_000_000):
        (y,) = call([x, weight])
        if number % 50_000 == 0:
            assert y.tolist() == want
    gc.collect()
    assert y.tolist() == want
    assert host_bytes() - host < 8 << 20
    assert device_bytes(device) - on_device == 0


def churn(row: Any, device: torch.device, sizes: int) -> tuple[Any, list[int]]:
    """A call for each of many random sizes; what is held afterwards, and the memory along the way."""
    runner, _ = make(lambda n, x: [x * 2 + n], "sp", (0,), device=device, row=row, capture_limit=8)
    draw, taken = random.Random(1), []
    for number in range(sizes):
        n = draw.randint(1, 4096)
        y = runner.run(n, torch.full((n,), 3.0, device=device))[0]
        if number % 500 == 0:
            assert y.unique().tolist() == [6.0 + n]
            taken.append(device_bytes(device))
    return runner, taken


def test_thousands_of_sizes_keep_memory_bounded() -> None:
    row = SimulatedDevice()
    with pytest.warns(DegradedWarning, match="dropped before they are replayed.*raise capture_limit") as said:
        runner, _ = churn(row, CPU, 3_000)
    assert len(said) == 1
    report = runner.report()
    assert len({r.key for r in report.recordings}) <= 8
    assert row.live <= 1 + 2 * 8
    assert report.static_bytes <= 4096 * 4 * 3 // 2


@pytest.mark.cuda
def test_ten_thousand_sizes_on_a_gpu() -> None:
    device = torch.device("cuda", 0)
    with pytest.warns(DegradedWarning, match="dropped before they are replayed"):
        _, taken = churn(get_device(device), device, 10_000)
    assert taken[-1] <= taken[len(taken) // 2] + (32 << 20)


def test_eight_threads_on_one_compiled_model(device: torch.device) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
    run = torch.compile(model, backend="npugraph_ex", dynamic=True)
    run(torch.randn(2, 8, device=device))
    run(torch.randn(3, 8, device=device))
    wrong: list[tuple[int, int]] = []

    def work(number: int) -> None:
        generator = torch.Generator(device).manual_seed(number)
        with torch.no_grad():
            for step in range(1000):
                x = torch.randn(2 + (number + step) % 2, 8, device=device, generator=generator)
                if not torch.allclose(run(x), model(x), atol=1e-5):
                    wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
