"""Where nothing is recorded: the CPU's bound programs, reasons, and what the user is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support.simulated_device import CPU, NAME, Body, SimulatedDevice, make
from torchair.capture import CompiledProgram, InputInfo, Policy, Role, capture, skip_reason
from torchair.core.errors import DegradedWarning
from torchair.core.torch_private.compilers.aot_autograd import dynamo_counters
from torchair.devices import get_device, installed, npu


@pytest.fixture(autouse=True)
def _fresh_counters() -> Iterator[None]:
    dynamo_counters.pop("npugraph_ex", None)
    yield
    dynamo_counters.pop("npugraph_ex", None)


def counter(name: str) -> int | None:
    return dynamo_counters["npugraph_ex"].get(f"{name}_{NAME}")


def bound(function: Any, roles: str = "p", key: tuple[Any, ...] = (), **policy: Any) -> Any:
    return make(function, roles, key, row=get_device(CPU), **policy)[0]


def test_cpu_counts_keys_and_returns_fresh_outputs() -> None:
    runner = bound(lambda n, x: [x + n], "sp", (0,))
    kept = [runner.run(n, torch.ones(n))[0] for n in (3, 5)]
    kept += [runner.boxed([n, torch.ones(n)])[0] for n in (3, 5, 5)]
    assert counter("captured") == 2
    assert len({y.data_ptr() for y in kept}) == 5
    assert runner.report().why_not == "cpu has no device graphs"


def test_cpu_counts_the_limit_as_everywhere() -> None:
    runner = bound(lambda n, x: [x + n], "sp", (0,), capture_limit=2)
    for n in (1, 2, 3, 4):
        runner.run(n, torch.ones(n))
    assert counter("captured") == 2
    assert runner.report().dropped == 2


def test_cpu_counts_moved_and_forced() -> None:
    runner = bound(lambda cache: [cache.add_(1)], "m")
    first, second = torch.zeros(1), torch.zeros(1)
    call = runner.boxed
    for cache in (first, first, second, second):
        call([cache])
    assert counter("recapture_due_to_mutated_input_change") == 1
    assert counter("captured") == 1
    forced = bound(lambda x: [x + 1], force_recapture=True)
    for _ in range(4):
        forced.run(torch.ones(1))
    assert counter("recapture_due_to_force_recapture") == 3


def test_switched_off_hands_out_the_program_itself() -> None:
    class Boxed(Body):
        _boxed_call = True

    program = Boxed(lambda x: [x + 1])
    runner = capture(CompiledProgram(program, X, Policy(capture=False), CPU, NAME))
    assert runner.boxed is program
    assert runner.run(torch.ones(1))[0].item() == 2
    assert counter("captured") is None


X = InputInfo(("x",), (Role.PLAIN,))
REASONS = [
    (X, Policy(capture=False), "switched off"),
    (InputInfo(("x",), (Role.HOST,)), Policy(), "input x is a CPU tensor"),
    (
        InputInfo(("x",), (Role.PLAIN,), obstacles=("nonzero has a size that depends on data",)),
        Policy(),
        "nonzero",
    ),
]


@pytest.mark.parametrize(("inputs", "policy", "text"), REASONS)
def test_reasons_not_to_record(inputs: InputInfo, policy: Policy, text: str) -> None:
    reason = skip_reason(inputs, policy, SimulatedDevice())
    assert reason is not None
    assert text in reason
    # What was asked for is not less than promised.
    told = pytest.warns(DegradedWarning, match=text) if policy.capture else contextlib.nullcontext()
    with told, installed(SimulatedDevice()):
        runner = capture(CompiledProgram(Body(lambda x: [x + 1]), inputs, policy, CPU, NAME))
    assert runner.run(torch.ones(1))[0].item() == 2
    assert runner.report().why_not == reason


def test_random_graphs_need_a_device_that_draws_afresh() -> None:
    inputs = InputInfo(("x",), (Role.PLAIN,), random=True)
    assert "random" in (skip_reason(inputs, Policy(), SimulatedDevice(random=False)) or "")
    assert skip_reason(inputs, Policy(), SimulatedDevice()) is None


def test_missing_device_is_the_skip_reason() -> None:
    reason = npu.DEVICE.why_no_graphs()
    assert reason is not None
    assert "npu" in reason


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"pool": (1, 2)}, TypeError),
        ({"pool": 3}, TypeError),
        ({"capture_limit": 0}, ValueError),
        ({"error_mode": "x"}, ValueError),
    ],
)
def test_bad_policies_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Policy(**options)


def test_report_prints_inputs_recordings_and_causes() -> None:
    runner, _ = make(lambda n, w, cache, x: [cache.add_(x * w * n)], "swmp", (0,))
    weight = torch.ones(2)
    for cache in (torch.zeros(2), torch.zeros(2)):
        runner.run(3, weight, cache, torch.ones(2))
    text = str(runner.report())
    assert "1 recordings" in text
    for line in ("arg0   symbol", "arg1   parameter  0", "arg2   mutated    0", "arg3   plain      8"):
        assert line in text
    assert "recorded again 1 times: mutated input arg2 moved" in text
    assert "[3]" in text
