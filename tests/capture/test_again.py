"""The quick way for a call that is like the one before: taken then, and only then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.capture.simulated import SimulatedDevice, make
from torchair.capture import Runner
from torchair.capture.replay import ReplayRunner
from torchair.core import quick


@pytest.fixture(autouse=True)
def _with_extension() -> Iterator[None]:
    if quick._extension is None:
        path = quick.library()
        if not path.exists():
            quick.build(path)
        quick.load(path)
    with torch.no_grad():
        yield


def affine(weight: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return [x * weight + 1]


def warm(function: Callable[..., Any] = affine, roles: str = "wp", **policy: Any) -> tuple[Runner, Any, Any]:
    """A runner after its first replay, its device, and a weight."""
    runner, row = make(function, roles, **policy)
    weight = torch.full((4,), 2.0)
    for _ in range(2):
        runner(([weight] if "w" in roles else []) + [torch.ones(4)])
    return runner, row, weight


def ask(runner: Runner, *args: Any) -> Any:
    assert runner.again is not None
    return runner.again(args)


def test_a_call_like_the_one_before_is_taken() -> None:
    runner, row, weight = warm()
    replays = row.replays
    for number in (3.0, 5.0):
        (y,) = ask(runner, weight, torch.full((4,), number))
        assert y.tolist() == [2 * number + 1] * 4
        del y
    assert row.replays == replays + 2
    assert sum(recording.replays for recording in runner.report().recordings) == 3


def test_not_before_something_was_replayed() -> None:
    runner, _ = make(affine, "wp")
    weight = torch.ones(4)
    assert ask(runner, weight, torch.ones(4)) is None
    runner([weight, torch.ones(4)])
    assert ask(runner, weight, torch.ones(4)) is None, "the first call ran directly"


def test_a_held_output_is_not_overwritten() -> None:
    runner, _, weight = warm()
    held = ask(runner, weight, torch.ones(4))[0][:2]
    assert ask(runner, weight, torch.zeros(4)) is None
    assert runner.run(weight, torch.zeros(4))[0].tolist() == [1.0] * 4
    assert held.tolist() == [3.0, 3.0]


def test_a_moved_weight_is_seen() -> None:
    runner, _, weight = warm()
    weight.data = torch.full((4,), 10.0)
    assert ask(runner, weight, torch.ones(4)) is None
    assert runner.run(weight, torch.ones(4))[0].tolist() == [11.0] * 4


def test_another_shape_is_left_to_the_careful_way() -> None:
    runner, _, weight = warm()
    assert ask(runner, weight, torch.ones(1)) is None
    assert ask(runner, weight, 3) is None
    assert ask(runner, weight) is None, "too few arguments"


def test_another_key_and_back() -> None:
    def scaled(n: int, x: torch.Tensor) -> list[torch.Tensor]:
        return [x * n]

    runner, _ = make(scaled, "sp", (0,))
    for n in (2, 3, 2, 3, 2):
        runner([n, torch.ones(4)])
    assert ask(runner, 3, torch.ones(4)) is None
    (y,) = ask(runner, 2, torch.ones(4))
    assert y.tolist() == [2.0] * 4


def test_with_gradients_and_in_inference_mode() -> None:
    runner, _, weight = warm()
    with torch.enable_grad():
        assert ask(runner, weight, torch.ones(4)) is None
    with torch.inference_mode():
        assert ask(runner, weight, torch.ones(4)) is None
        for _ in range(2):
            runner([weight, torch.ones(4)])
        assert ask(runner, weight, torch.ones(4)) is not None
    assert ask(runner, weight, torch.ones(4)) is None


def test_another_stream_takes_its_turn_first() -> None:
    runner, row, weight = warm()
    assert isinstance(row, SimulatedDevice)
    row.local.name = "side"
    assert ask(runner, weight, torch.ones(4)) is None
    runner.run(weight, torch.ones(4))
    assert ask(runner, weight, torch.ones(4)) is not None


def test_inside_a_capture_and_under_a_profiler() -> None:
    runner, row, weight = warm()
    row.capturing = True
    assert ask(runner, weight, torch.ones(4)) is None
    row.capturing = False
    with torch.profiler.profile():
        assert ask(runner, weight, torch.ones(4)) is None
    assert ask(runner, weight, torch.ones(4)) is not None


@pytest.mark.parametrize(
    "policy", [{"clone_output": True}, {"clone_input": False}], ids=["outputs copied", "inputs borrowed"]
)
def test_recordings_that_need_a_closer_look(policy: dict[str, Any]) -> None:
    runner, _, weight = warm(**policy)
    assert ask(runner, weight, torch.ones(4)) is None


def test_forced_recaptures_have_no_quick_way() -> None:
    runner, _ = make(affine, "wp", force_recapture=True)
    assert runner.again is None


def test_mutated_inputs_are_compared_even_when_parameters_are_frozen() -> None:
    def count(cache: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        cache.add_(x)
        return [cache + 0]

    runner, _ = make(count, "mp", frozen_parameter=True)
    cache = torch.zeros(4)
    for _ in range(2):
        runner([cache, torch.ones(4)])
    assert ask(runner, cache, torch.ones(4))[0].tolist() == [3.0] * 4
    assert cache.tolist() == [3.0] * 4
    assert ask(runner, cache.clone(), torch.ones(4)) is None


def test_threads_wait_for_each_other() -> None:
    runner, _, weight = warm()
    assert isinstance(runner, ReplayRunner)
    results: list[Any] = []
    with runner._pool.lock:
        thread = threading.Thread(target=lambda: results.append(quiet(runner, weight)))
        thread.start()
        thread.join(0.2)
        assert not results
    thread.join()
    assert results[0] is not None


def quiet(runner: Runner, weight: torch.Tensor) -> Any:
    with torch.no_grad():
        return ask(runner, weight, torch.ones(4))
