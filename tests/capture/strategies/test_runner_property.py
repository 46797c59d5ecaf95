"""Random sequences of calls on the simulated device give what running directly gives."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulated_device import CPU, make
from torchair.core.native import fast_replay


def program(n: int, weight: torch.Tensor, cache: torch.Tensor, x: torch.Tensor) -> list[Any]:
    """Reads, writes, returns a view of an input, the written input, two views of one result, and a number."""
    cache[:n].add_(x)
    y = x * weight[0] + cache.sum()
    return [y, y[:1], cache, x[1:], n + 1]


class Call(NamedTuple):
    """One call and what happens around it."""

    size: int
    weight: int
    cache: int  # 2: a new one
    before: str
    after: str
    gradients: bool


BEFORE = ("nothing", "move weight", "change weight", "fail")
AFTER = ("drop", "keep", "keep view", "feed", "write")
CALL = st.builds(
    Call,
    size=st.integers(2, 4),
    weight=st.integers(0, 1),
    cache=st.integers(0, 2),
    before=st.sampled_from(BEFORE),
    after=st.sampled_from(AFTER),
    gradients=st.booleans(),
)
OPTIONS = st.fixed_dictionaries(
    {
        "capture_limit": st.integers(1, 3),
        "clone_input": st.booleans(),
        "clone_output": st.booleans(),
        "force_recapture": st.booleans(),
        "reuse_pool": st.booleans(),
    }
)


class World:
    """The caller's tensors, once for the runner and once for the direct run."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.weights = [torch.full((1,), 2.0, device=device), torch.full((1,), 3.0, device=device)]
        self.caches = [torch.zeros(4, device=device), torch.ones(4, device=device)]
        self.kept: list[torch.Tensor] = []
        self.x = torch.arange(4.0, device=device)

    def step(self, run: Any, call: Call) -> list[Any]:
        size, weight = call.size, self.weights[call.weight]
        cache = self.caches[call.cache] if call.cache < 2 else torch.full((4,), 5.0, device=self.device)
        if call.before == "move weight":
            weight.data = torch.cat([weight.data * 2, torch.zeros(8, device=self.device)])[:1]
        elif call.before == "change weight":
            weight.mul_(-1.0)
        elif call.before == "fail":
            with pytest.raises((RuntimeError, ValueError)):
                run(size, weight, cache, torch.ones(size + 3, device=self.device))
        with torch.set_grad_enabled(call.gradients):
            outputs = run(size, weight, cache, self.x[:size])
        seen = [o.clone() if isinstance(o, torch.Tensor) else o for o in outputs]
        if call.after == "keep":
            self.kept += [outputs[0], outputs[3]]
        elif call.after == "keep view":
            self.kept.append(outputs[0][1:])
        elif call.after == "feed":
            self.x = torch.cat([outputs[0], self.x[size:]]) % 101
        elif call.after == "write":
            outputs[0].fill_(-1.0)
            outputs[3].add_(1.0)
        return [*seen, *self.caches, *self.weights, *self.kept]


def follow(calls: list[Call], options: dict[str, Any], device: torch.device) -> None:
    """Make these calls through a runner and directly, and compare all that the caller can see after each."""
    runner, _ = make(program, "swmp", (0,), aliases={2: [2], 3: [3]}, device=device, **options)
    recorded, direct = World(device), World(device)
    for call in calls:
        got = recorded.step(runner.run, call)
        want = direct.step(program, call)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(torch.as_tensor(a).cpu(), torch.as_tensor(b).cpu()), (call, options)


SEQUENCES = st.lists(CALL, min_size=1, max_size=14)


@pytest.mark.filterwarnings("ignore:.*moved on every call:torchair.DegradedWarning")
@settings(max_examples=60)
@given(calls=SEQUENCES, options=OPTIONS)
def test_any_sequence_of_calls_equals_running_directly(calls: list[Call], options: dict[str, Any]) -> None:
    if not fast_replay.is_loaded():
        fast_replay.load(fast_replay.built())
    follow(calls, options, CPU)


@pytest.mark.filterwarnings("ignore:.*moved on every call:torchair.DegradedWarning")
@settings(max_examples=60)
@given(calls=SEQUENCES, options=OPTIONS)
def test_any_sequence_without_the_extension(calls: list[Call], options: dict[str, Any]) -> None:
    with mock.patch.multiple(fast_replay, _extension=None, _asked=True):
        follow(calls, options, CPU)


@pytest.mark.filterwarnings("ignore:.*moved on every call:torchair.DegradedWarning")
@pytest.mark.full
@settings(max_examples=2000)
@given(calls=SEQUENCES, options=OPTIONS)
def test_two_thousand_sequences(calls: list[Call], options: dict[str, Any]) -> None:
    follow(calls, options, CPU)
