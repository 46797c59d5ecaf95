"""Recordings of different sizes share the memory of their outputs, and nobody's output is overwritten."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.support.simulated_device import SimulatedDevice, make
from torchair.capture import Runner
from torchair.capture.base.output_buffers import TURNS, OutputBuffer, OutputBufferPool
from torchair.core.native import fast_replay

FLOAT = 4
SIZES = [3, 5, 8, 13, 21]


@pytest.fixture(autouse=True, params=["extension", "python"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Outputs are handed out in C++ or in Python."""
    if request.param == "python":
        monkeypatch.setattr(fast_replay, "_extension", None)
        monkeypatch.setattr(fast_replay, "_asked", True)
    elif not fast_replay.is_loaded():
        fast_replay.load(fast_replay.built())
    with torch.no_grad():
        yield request.param


def scaled(n: int, x: torch.Tensor) -> list[torch.Tensor]:
    return [x * n]


def sized(**policy: Any) -> tuple[Runner, SimulatedDevice]:
    return make(scaled, "sp", (0,), **policy)


def call_with_size(runner: Runner, size: int, value: float) -> torch.Tensor:
    (y,) = runner.run(size, torch.full((size,), value))
    assert y.tolist() == [value * size] * size
    return y


def two_each(runner: Runner, sizes: list[int]) -> None:
    """Of each size a call that records, and one that is replayed."""
    for size in sizes:
        for value in (1.0, 2.0):
            call_with_size(runner, size, value)


def homes_of(runner: Runner) -> set[OutputBuffer]:
    return {home for entry in runner.strategy._entries for home in entry.homes}  # type: ignore[attr-defined]


def test_descending_sizes_share_the_first_home() -> None:
    runner, row = sized()
    two_each(runner, [22, *reversed(SIZES)])
    assert runner.report().home_bytes == 21 * FLOAT, "the first recording of a pool needs none"
    assert row.captures == len(SIZES) + 1


def test_ascending_sizes_grow_and_leave_less_than_all() -> None:
    runner, _ = sized()
    sizes = list(range(2, 60))
    two_each(runner, sizes)
    assert runner.report().home_bytes < 5 * 59 * FLOAT < sum(sizes) * FLOAT
    assert runner.report().static_bytes < 2 * 59 * FLOAT


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "output": lambda y: y,
    "view": lambda y: y[1:],
    "numpy": lambda y: y.numpy(),
    "storage": lambda y: y.untyped_storage(),
    "dlpack": lambda y: torch.from_dlpack(y),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_an_output_of_another_size_is_not_overwritten(holder: str) -> None:
    runner, _ = sized()
    two_each(runner, [21, 13, 8])
    y = call_with_size(runner, 13, 7.0)
    where, held = y.data_ptr(), HOLDERS[holder](y)
    before = y.untyped_storage().tolist()
    del y
    for value in (1.0, 2.0, 3.0):
        for size in (8, 13, 21, 8):
            assert call_with_size(runner, size, value).data_ptr() != where
    other = held if holder == "storage" else torch.as_tensor(held).untyped_storage()
    assert other.tolist() == before
    del held, other
    both = [call_with_size(runner, 13, 1.0), call_with_size(runner, 13, 2.0)]
    assert where in [each.data_ptr() for each in both], "now it is free again"


def test_many_held_outputs_are_copied_with_warning() -> None:
    runner, _ = sized()
    two_each(runner, [21, 13, 8, 5, 3])
    kept = [
        (size, value, call_with_size(runner, size, value)) for value in (1.0, 2.0) for size in (13, 8, 5, 3)
    ]
    assert all(y.tolist() == [size * value] * size for size, value, y in kept)
    report = runner.report()
    assert report.home_bytes == TURNS * 13 * FLOAT
    copied = [row for row in report.recordings if row.private]
    assert copied
    assert report.bytes_copied_out > 0
    del kept
    gc.collect()
    replays = sum(row.replays for row in copied)
    for size in (13, 8, 5, 3):
        call_with_size(runner, size, 3.0)
    assert sum(r.replays for r in runner.report().recordings if r.private) == replays, "nothing is held now"


def test_a_loop_that_holds_one_output_copies_nothing() -> None:
    """As in `y = run(x)`: the output before is still there."""
    runner, row = sized()
    rng = random.Random(0)
    y = torch.empty(0)
    for _ in range(200):
        y = call_with_size(runner, rng.choice(SIZES), float(rng.randrange(9)))
    del y
    assert not any(recording.private for recording in runner.report().recordings)
    assert row.captures <= (TURNS + 1) * len(SIZES), "a recording in each home, and growing ones"


def test_recordings_of_one_size_have_homes_of_their_own() -> None:
    """Layers that share a graph: all outputs of a step are held, and none is copied."""
    runner, _ = make(lambda w, n, x: [x * w], "wsp", (1,))
    weights = [torch.full((), float(at)) for at in range(1, 6)]
    for _ in range(4):
        for size in (3, 2):
            ys = [runner.run(w, size, torch.ones(size))[0] for w in weights]
            assert [y.tolist() for y in ys] == [[float(at)] * size for at in range(1, 6)]
            del ys
    assert not any(recording.private for recording in runner.report().recordings)


def test_a_dropped_size_leaves_its_held_output_and_its_neighbours() -> None:
    runner, _ = sized(capture_limit=2)
    two_each(runner, [21, 13])
    held = call_with_size(runner, 13, 5.0)
    for _ in range(4):
        two_each(runner, [8, 5, 3])
    assert runner.report().dropped > 0
    assert held.tolist() == [65.0] * 13


def test_homes_go_with_their_recordings() -> None:
    runner, _ = sized()
    two_each(runner, [21, 13, 8])
    homes = runner.strategy._recorder._homes  # type: ignore[attr-defined]
    assert len(homes._living()) == 1
    runner.strategy._entries.clear()  # type: ignore[attr-defined]
    gc.collect()
    assert homes._living() == []


def test_an_output_that_was_resized_is_elsewhere() -> None:
    """Its storage has other memory then, while recordings know the old one."""
    runner, _ = sized()
    two_each(runner, [21, 13])
    y = call_with_size(runner, 13, 1.0)
    y.resize_(1000).fill_(0.0)
    assert call_with_size(runner, 13, 2.0).data_ptr() != y.data_ptr()
    del y
    for value in (3.0, 4.0):
        call_with_size(runner, 13, value)


def test_views_and_several_outputs_share_homes() -> None:
    def both(n: int, x: torch.Tensor) -> list[torch.Tensor]:
        y = x * n
        return [y, y[1:], x + n, y.to(torch.complex64).conj()]

    runner, _ = make(both, "sp", (0,))
    held: Any = None
    for size in [9, 7, 5, 7, 9, 5] * 4:
        x = torch.rand(size)
        got = runner.run(size, x)
        for mine, theirs in zip(got, both(size, x), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        assert got[1].data_ptr() == got[0].data_ptr() + FLOAT
        if held is not None:
            assert held[0].tolist() == held[1]
        held = got[3], got[3].tolist()


def test_threads_of_different_sizes() -> None:
    runner, _ = sized()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        held: list[tuple[torch.Tensor, list[float]]] = []
        for step in range(100):
            size, value = rng.choice(SIZES), float(seed * 1000 + step)
            (y,) = runner.run(size, torch.full((size,), value))
            held.append((y, [value * size] * size))
            wrong.extend(y for y, expected in held if y.tolist() != expected)
            held = held[-rng.randrange(4) :]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_home_of_known_room_serves_all() -> None:
    homes = OutputBufferPool(torch.device("cpu"))
    first = homes.find([4], [100], [])
    assert first.nbytes == 100
    assert homes.find([100], [100], []) is first
    second = homes.find([8], [100], [first])
    assert second is not first
    held = fast_replay.view_on(torch.empty(2), first.rest.storages[0], 0)
    assert homes.find([8], [100], []) is second
    assert not homes.has_room([8], [second])
    del held
    assert homes.has_room([8], [second])


def test_the_simulation_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: who takes every home for free overwrites what is held."""
    runner, _ = sized()
    two_each(runner, [21, 13, 8])
    monkeypatch.setattr(fast_replay.AtRest, "is_free", lambda self: True)
    held = call_with_size(runner, 13, 7.0)
    runner([8, torch.ones(8)])
    assert held.tolist() != [91.0] * 13
