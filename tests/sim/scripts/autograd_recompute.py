"""Activation checkpoints, hooks and gradients of gradients."""

import proof
import torch
import torch_npu
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Tanh()).npu()
x = torch.randn(2, 4, device="npu", requires_grad=True)
torch.manual_seed(3)
layer(x).sum().backward()
plain, x.grad = x.grad.clone(), None
torch.manual_seed(3)
checkpoint(layer, x, use_reentrant=False).sum().backward()
assert torch.equal(x.grad, plain), "the same dropout was drawn again"
seen = []
x.register_hook(lambda grad: seen.append(grad.device.type))
(x**3).sum().backward()
assert seen == ["npu"]
y = torch.tensor([2.0], device="npu", requires_grad=True)
(first,) = torch.autograd.grad(y**4, y, create_graph=True)
(second,) = torch.autograd.grad(first, y)
proof.close(second, torch.tensor([48.0]))
