"""A compiled function that writes into views of its input, and returns views."""

import proof
import torch
import torch_npu


def f(x):
    x[1:, ::2].mul_(3)
    x.t()[0].fill_(7)
    return x.t(), x[0]


for backend in ("npu", "npugraph_ex"):
    torch.compiler.reset()
    opt = torch.compile(f, backend=backend, fullgraph=True, dynamic=False)
    host = torch.arange(12.0).view(3, 4)
    given = host.npu()
    with proof.replayed(2):
        for _ in range(3):
            want, got = f(host), opt(given)
            proof.close(given, host)
            for mine, other in zip(got, want, strict=True):
                proof.close(mine, other)
                assert mine.stride() == other.stride()
                assert mine.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
