"""A backend of one's own around `torch.npu.npugraph_ex.compile_fx`."""

import proof
import torch
import torch_npu
from torch._functorch.aot_autograd import aot_module_simplified


def inner(gm, inputs):
    return torch.npu.npugraph_ex.compile_fx(gm, inputs, {"clone_input": False})


def my_backend(gm, inputs):
    return aot_module_simplified(gm, inputs, fw_compiler=inner, keep_inference_input_mutations=True)


opt = torch.compile(lambda x, y: (x @ y).tanh(), backend=my_backend, dynamic=False)
x, y = torch.randn(3, 4), torch.randn(4, 2)
with torch.no_grad(), proof.compiled(), proof.replayed():
    for _ in range(4):
        proof.close(opt(x.npu(), y.npu()), (x @ y).tanh())
