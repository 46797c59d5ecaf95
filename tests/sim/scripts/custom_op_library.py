"""Custom ops for the device: a functional one and one that writes, eagerly and in both modes."""

import proof
import torch
import torch_npu
from torch.library import Library, impl

import torchair

library = Library("script_ops", "DEF")
library.define("gated(Tensor x, Tensor gate) -> Tensor")
library.define("accumulate_(Tensor(a!) total, Tensor x) -> ()")


@impl(library, "gated", "PrivateUse1")
def gated(x, gate):
    return x * torch.sigmoid(gate)


@impl(library, "gated", "Meta")
def gated_meta(x, gate):
    return torch.empty_like(x)


@impl(library, "accumulate_", "PrivateUse1")
def accumulate_(total, x):
    total.add_(x)


@impl(library, "accumulate_", "Meta")
def accumulate_meta(total, x):
    pass


def step(total, x, gate):
    y = torch.ops.script_ops.gated(x, gate)
    torch.ops.script_ops.accumulate_(total, y)
    return y + total


x, gate = torch.randn(4), torch.randn(4)
one = x * torch.sigmoid(gate)
for backend in (None, "npugraph_ex"):
    total = torch.zeros(4, device="npu")
    call = step if backend is None else torch.compile(step, backend=backend, fullgraph=True)
    with proof.replayed(0 if backend is None else 2):
        for number in range(1, 5):
            proof.close(call(total, x.npu(), gate.npu()), one * (number + 1))
    proof.close(total, one * 4)
try:
    torch.ops.script_ops.gated(x, gate)
except NotImplementedError:
    pass
else:
    raise AssertionError("there is no kernel for the CPU")
