"""An autograd function of one's own, on the device and compiled."""

import proof
import torch
import torch_npu

import torchair


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


x = torch.randn(4)
for call in (Cube.apply, torch.compile(Cube.apply, backend=torchair.get_npu_backend())):
    given = x.npu().requires_grad_()
    out = call(given)
    proof.close(out, x**3)
    out.sum().backward()
    proof.close(given.grad, 3 * x**2)
with proof.compiled(0), proof.replayed(1):
    call(x.npu().requires_grad_()).sum().backward()
