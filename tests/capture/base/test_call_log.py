"""What calls tell at DEBUG, what it costs otherwise, and the ranges that profilers see."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support.simulated_device import CPU, NAME, Body, make
from torchair.capture import CompiledProgram, InputInfo, Policy, Role, capture
from torchair.capture.base.call_log import describe
from torchair.capture.strategies.direct import CountedDirect, Direct
from torchair.capture.strategies.replay import Replay
from torchair.capture.strategies.runner import Runner
from torchair.core.errors import DegradedWarning
from torchair.core.log import capture_logger

PHASES = ("key generation", "input processing", "parameter update", "whole call")


@pytest.fixture
def debug() -> Iterator[None]:
    level = capture_logger.level
    capture_logger.setLevel(logging.DEBUG)
    yield
    capture_logger.setLevel(level)


def bound(policy: Policy) -> Runner:
    inputs = InputInfo(("x",), (Role.PLAIN,))
    return capture(CompiledProgram(Body(lambda x: [x + 1]), inputs, policy, CPU, NAME))


def direct() -> Runner:
    return bound(Policy(capture=False))


def spent(line: str) -> dict[str, float]:
    return {name: float(us) for name, us in re.findall(rf"({'|'.join(PHASES)}) ([\d.]+) us", line)}


@pytest.mark.usefixtures("debug")
def test_a_replay_tells_its_phases_arguments_and_results(capsys: pytest.CaptureFixture[str]) -> None:
    runner, row = make(lambda x, n: [x * 2, x.t()], "ps", key=(1,))
    for value in (1.0, 2.0):
        capsys.readouterr()
        x = torch.full((2, 3), value)
        results = runner.run(x, 3)
    torch.testing.assert_close(results[0], x * 2)
    assert row.replays == 1
    lines = [line.split(f"{NAME}: ", 1)[1] for line in capsys.readouterr().out.splitlines() if NAME in line]
    assert lines[0] == f"input 0 arg0: Tensor (2, 3) torch.float32 on cpu, contiguous, at {x.data_ptr():#x}"
    assert lines[1] == "input 1 arg1: int 3"
    assert lines[3].startswith("output 0: Tensor (2, 3) torch.float32 on cpu, contiguous, at 0x")
    assert lines[4].startswith("output 1: Tensor (3, 2) torch.float32 on cpu, strides (1, 3), at 0x")
    times = spent(lines[2])
    assert tuple(times) == PHASES
    assert times["key generation"] > 0
    assert times["input processing"] > 0
    assert times["parameter update"] == 0
    assert times["whole call"] > times["key generation"] + times["input processing"]


@pytest.mark.usefixtures("debug")
def test_lists_of_numbers_are_parameters_to_update(capsys: pytest.CaptureFixture[str]) -> None:
    inputs = InputInfo(("x", "n"), (Role.PLAIN, Role.SYMBOL), packs=((("index", 1), ("number", 7)),))
    runner = capture(CompiledProgram(Body(lambda x, n, packed: [x + packed]), inputs, Policy(), CPU, NAME))
    assert runner.run(torch.zeros(2), 3)[0].tolist() == [3.0, 7.0]
    assert "parameter update 0.0 us" not in capsys.readouterr().out


@pytest.mark.usefixtures("debug")
@pytest.mark.parametrize("statistics", [False, True])
def test_statistics_when_asked_for(capsys: pytest.CaptureFixture[str], statistics: bool) -> None:
    bound(Policy(statistics=statistics)).run(torch.tensor([3.0, -4.0]))
    said = capsys.readouterr().out
    assert ("min -4, max 3, norm 5, mean -0.5" in said) is statistics
    assert ("min -3, max 4, norm 5, mean 0.5" in said) is statistics


VALUES = [
    (torch.zeros(0, 2), "no elements"),
    (torch.tensor([True, False]), "min 0, max 1, norm 1, mean 0.5"),
    (torch.tensor([3 + 4j]), "min 5, max 5, norm 5, mean 5"),
    (torch.tensor([1.0, float("nan")]), "min nan, max nan, norm nan, mean nan"),
    (torch.tensor([2**40, 2**40 + 2]), "mean 1.09951e+12"),
    (torch.ones(2, dtype=torch.float8_e5m2), "min 1, max 1, norm 1.41421, mean 1"),
    (torch.eye(2).to_sparse(), "Tensor (2, 2) torch.float32 on cpu ("),
    (None, "NoneType None"),
]


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_no_value_is_too_odd(value: Any, text: str) -> None:
    assert text in describe(value, True)


def test_without_debug_runners_are_the_plain_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert not capture_logger.isEnabledFor(logging.DEBUG)
    runners = [make(lambda x: [x + 1])[0], bound(Policy()), direct()]
    assert [type(runner.strategy) for runner in runners] == [Replay, CountedDirect, Direct]
    assert not any(runner.strategy.compiled.observers for runner in runners)
    for runner in runners:
        assert runner.run(torch.ones(1))[0].item() == 2
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("debug")
def test_at_debug_every_kind_of_runner_tells(capsys: pytest.CaptureFixture[str]) -> None:
    for runner in (make(lambda x: [x + 1])[0], bound(Policy()), direct()):
        assert runner.fast_path(b"") is None
        assert runner.boxed([torch.ones(1)])[0].item() == 2
        said = capsys.readouterr().out
        assert "input 0" in said
        assert "output 0" in said


def test_statistics_without_debug_warn() -> None:
    with pytest.warns(DegradedWarning, match="record_statistics_debug_info has no effect"):
        bound(Policy(statistics=True))


def ranges(run: Any) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    names = {event.key for event in profile.key_averages()}
    return {name for name in names if name.startswith(("acl_graph", "fx_run", "npu_fx"))}


def test_ranges_of_recording_and_replaying() -> None:
    runner, _ = make(lambda x: [x + 1])
    assert ranges(lambda: runner.run(torch.ones(1))) == {"acl_graph_warm_up", "acl_graph_capture"}
    assert ranges(lambda: runner.run(torch.ones(1))) == {"acl_graph_replay"}


def test_ranges_of_running_directly() -> None:
    function = torch.compile(lambda x: x + 1, backend="npugraph_ex", options={"force_eager": True})
    x = torch.ones(2)
    assert ranges(lambda: function(x)) == {"npu_fx_compiler inference", "fx_run_eagerly"}
    assert ranges(lambda: function(x)) == {"fx_run_eagerly"}
    assert ranges(lambda: direct().run(x)) == set()
