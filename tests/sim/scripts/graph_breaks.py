"""A model that looks at a value between two graphs: both are compiled."""

import proof
import torch
import torch_npu

import torchair

seen = []


@torch.compiler.disable
def note(total):
    seen.append(total.item() > 0)


def f(x):
    y = x.sin()
    note(y.sum())
    return y.cos() + 1


x = torch.full((4,), 0.5)
opt = torch.compile(f, backend=torchair.get_npu_backend(), dynamic=False)
with proof.compiled(2, breaks=1), proof.replayed(4):
    for _ in range(4):
        proof.close(opt(x.npu()), x.sin().cos() + 1)
assert seen == [True] * 4
