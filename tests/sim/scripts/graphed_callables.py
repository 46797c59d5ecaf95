"""`make_graphed_callables`: parts of a model are graphs, the rest is not."""

import copy

import proof
import torch
import torch_npu

torch.manual_seed(0)
host = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
model = copy.deepcopy(host).npu()
sample = torch.randn(3, 4, device="npu", requires_grad=False)
part = torch.npu.make_graphed_callables(model[0], (sample,))
with proof.replayed(4):
    for _ in range(2):
        x = torch.randn(3, 4)
        host.zero_grad()
        model.zero_grad()
        host(x).square().sum().backward()
        model[2](torch.relu(part(x.npu()))).square().sum().backward()
        proof.close(model[0].weight.grad, host[0].weight.grad, rtol=1e-4, atol=1e-5)
