"""Random sequences of calls on the simulated device give what running directly gives."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.capture.simulated import CPU, make


def program(n: int, weight: torch.Tensor, cache: torch.Tensor, x: torch.Tensor) -> list[Any]:
    """Reads, writes, returns a view of an input, the written input, two views of one result, and a number."""
    cache[:n].add_(x)
    y = x * weight[0] + cache.sum()
    return [y, y[:1], cache, x[1:], n + 1]


CALL = st.tuples(
    st.integers(2, 4),  # size
    st.integers(0, 1),  # which weight
    st.integers(0, 2),  # which cache; 2: a new one
    st.sampled_from(["drop", "keep", "keep view", "feed", "write"]),  # what happens to the outputs
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

    def step(self, run: Any, size: int, weight: int, cache: int, after: str) -> list[Any]:
        chosen = self.caches[cache] if cache < 2 else torch.full((4,), 5.0, device=self.device)
        outputs = run(size, self.weights[weight], chosen, self.x[:size])
        seen = [o.clone() if isinstance(o, torch.Tensor) else o for o in outputs]
        if after == "keep":
            self.kept += [outputs[0], outputs[3]]
        elif after == "keep view":
            self.kept.append(outputs[0][1:])
        elif after == "feed":
            self.x = torch.cat([outputs[0], self.x[size:]])
        elif after == "write":
            outputs[0].fill_(-1.0)
            outputs[3].add_(1.0)
        return [*seen, *self.caches, *self.kept]


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(CALL, min_size=1, max_size=14), options=OPTIONS)
def test_any_sequence_of_calls_equals_running_directly(calls: list[Any], options: dict[str, Any]) -> None:
    follow(calls, options, CPU)


def follow(calls: list[Any], options: dict[str, Any], device: torch.device) -> None:
    """Make these calls through a runner and directly, and compare all that the caller can see after each."""
    runner, _ = make(program, "swmp", (0,), aliases={2: [2], 3: [3]}, device=device, **options)
    recorded, direct = World(device), World(device)
    for call in calls:
        got = recorded.step(runner.run, *call)
        want = direct.step(program, *call)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(torch.as_tensor(a).cpu(), torch.as_tensor(b).cpu()), (call, options)
