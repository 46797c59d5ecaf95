"""Dropout and random tensors: seeded, eagerly and in replays."""

import proof
import torch
import torch_npu

import torchair

torch.manual_seed(7)
first = torch.rand(8, device="npu")
torch.npu.manual_seed(7)
assert torch.equal(first, torch.rand(8, device="npu"))


def drop(x):
    return torch.nn.functional.dropout(x, 0.5)


opt = torch.compile(drop, backend="npugraph_ex", dynamic=False)
x = torch.ones(256, device="npu")
with proof.compiled(), proof.replayed(3):
    draws = [opt(x) for _ in range(5)]
assert len({tuple(draw.tolist()) for draw in draws}) == 5, "every call draws anew"
for draw in draws:
    assert set(draw.tolist()) <= {0.0, 2.0}
