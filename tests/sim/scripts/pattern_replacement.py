"""A pattern of the user's, replaced in the graph."""

import proof
import torch
import torch_npu
from torch._subclasses.fake_tensor import FakeTensorMode

import torchair

ran = []


@torch.library.custom_op("scripts::add_relu", mutates_args=())
def add_relu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    ran.append(a.shape)
    return torch.relu(a + b)


@add_relu.register_fake
def _(a, b):
    return torch.empty_like(a)


with FakeTensorMode():
    e = torch.empty(2, 4, device="npu")
    torch.npu.npugraph_ex.register_replacement(
        lambda a, b: torch.relu(a + b), lambda a, b: torch.ops.scripts.add_relu(a, b), (e, e)
    )
opt = torch.compile(lambda x, y: torch.relu(x + y) * 2, backend="npugraph_ex", dynamic=False)
x, y = torch.randn(3, 5), torch.randn(3, 5)
with proof.compiled(), proof.replayed():
    for _ in range(3):
        proof.close(opt(x.npu(), y.npu()), torch.relu(x + y) * 2)
assert ran, "the replacement ran"
