"""Custom ops of every kind in capture mode, and `torch.npu.npugraph_ex`."""

import proof
import torch
import torch_npu
from torch.library import Library, impl

import torchair


@torch.library.custom_op("scripts::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


def _add_into(x, y):
    x.add_(y)


library = Library("scripts_npu", "DEF")
library.define("shifted(Tensor x) -> Tensor")
library.define("add_into(Tensor(a!) x, Tensor y) -> ()")
impl(library, "shifted", "PrivateUse1")(lambda x: x + 1)
impl(library, "shifted", "Meta")(torch.empty_like)
impl(library, "add_into", "PrivateUse1")(_add_into)
impl(library, "add_into", "Meta")(lambda x, y: None)


def step(state, x):
    torch.ops.scripts_npu.add_into(state, x)
    return torch.ops.scripts_npu.shifted(scaled(state, 2.0))


config = torchair.CompilerConfig()
config.mode = "npugraph_ex"
opt = torch.compile(step, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
state, x = torch.zeros(3, device="npu"), torch.ones(3, device="npu")
with proof.compiled(), proof.replayed(3):
    for number in range(1, 5):
        assert opt(state, x).tolist() == [2.0 * number + 1] * 3
        assert state.tolist() == [float(number)] * 3
assert torch.npu.npugraph_ex is torch_npu.npugraph_ex
assert torch.npu.npugraph_ex is torch_npu.npu.npugraph_ex
