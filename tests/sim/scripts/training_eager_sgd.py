"""Plain training without a compiler: momentum, weight decay, a schedule and clipped gradients."""

import copy

import proof
import torch
import torch_npu

torch.manual_seed(0)
host = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Flatten(), torch.nn.Linear(32, 4))
model = copy.deepcopy(host).npu()


def train(model, device):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for _ in range(8):
        x = torch.randint(0, 11, (5, 4)).to(device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
    return loss


want = train(host, "cpu")
proof.close(train(model, "npu"), want)
for mine, other in zip(model.parameters(), host.parameters(), strict=True):
    assert mine.grad.device.type == "npu"
    proof.close(mine, other)
