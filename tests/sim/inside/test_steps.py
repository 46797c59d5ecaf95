"""Optimizers on the device: one tensor after the other, all in one call, or in one kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import foreach_binary_op_db, foreach_unary_op_db

from tests.convert.opinfo import name_of
from tests.sim.inside.op_pair import Pair, sampled

NPU = torch.device("npu:0")
KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


@pytest.mark.parametrize("way", ["plain", "foreach", "fused"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_steps_are_those_of_the_host(kind: type[torch.optim.Optimizer], way: str) -> None:
    options: dict[str, Any] = {"lr": 0.01} | ({} if way == "plain" else {way: True})
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    copy = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(NPU)
    copy.load_state_dict(model.state_dict())
    x = torch.randn(7, 6)
    for one, inputs in ((model, x), (copy, x.to(NPU))):
        steps = kind(one.parameters(), **options)
        for _ in range(3):
            steps.zero_grad()
            one(inputs).square().sum().backward()
            steps.step()
        assert all(
            state.is_npu or way == "plain" or state.dim() == 0 for state in _states(steps) if one is copy
        )
    for got, want in zip(copy.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.cpu(), want)


def _states(steps: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value for state in steps.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]


@pytest.mark.parametrize("op", foreach_unary_op_db + foreach_binary_op_db, ids=name_of)
@pytest.mark.filterwarnings("ignore")
def test_lists_of_tensors(op: Any) -> None:
    """`_foreach_` operators give what they give on the host, out of place and in place."""
    for sample in sampled(op, str(NPU), torch.float32, 2):
        Pair(op, NPU).forward(sample)
        if op.get_inplace() is not None:
            Pair(op, NPU).in_place(sample)
