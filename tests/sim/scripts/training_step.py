"""A training loop, compiled: losses and weights are those of the CPU."""

import copy

import proof
import torch
import torch_npu

import torchair

torch.manual_seed(0)
host = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3))
model = copy.deepcopy(host).npu()
batches = [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(5)]


def train(model, call, device):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(call(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


want = train(host, host, "cpu")
with proof.compiled(), proof.replayed(4):
    got = train(model, torch.compile(model, backend=torchair.get_npu_backend()), "npu")
torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-4, atol=1e-5)
for mine, other in zip(model.parameters(), host.parameters(), strict=True):
    proof.close(mine, other, rtol=1e-3, atol=1e-5)
