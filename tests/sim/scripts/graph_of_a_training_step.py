"""Forward, backward and update in one graph."""

import copy

import proof
import torch
import torch_npu

torch.manual_seed(0)
host = torch.nn.Linear(4, 2)
model = copy.deepcopy(host).npu()
steps = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.zeros(8, 4, device="npu"), torch.zeros(8, 2, device="npu")
loss_of = torch.nn.functional.mse_loss
side = torch.npu.Stream()
with torch.npu.stream(side):
    for _ in range(2):
        steps.zero_grad(set_to_none=True)
        loss_of(model(x), y).backward()
torch.npu.current_stream().wait_stream(side)
graph = torch.npu.NPUGraph()
steps.zero_grad(set_to_none=True)
with torch.npu.graph(graph):
    loss = loss_of(model(x), y)
    loss.backward()
    steps.step()
want = torch.optim.SGD(host.parameters(), lr=0.1)
for _ in range(4):
    given, target = torch.randn(8, 4), torch.randn(8, 2)
    x.copy_(given)
    y.copy_(target)
    graph.replay()
    want.zero_grad()
    expected = loss_of(host(given), target)
    expected.backward()
    want.step()
    proof.close(loss, expected)
proof.close(model.weight, host.weight)
