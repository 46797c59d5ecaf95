"""Weights in the layouts of the hardware, and the patch of collectives that is not needed any more."""

import proof
import torch
import torch_npu

import torchair

torchair.patch_for_hcom()
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
x = torch.randn(2, 16)
with torch.no_grad():
    want = model(x)
model = model.npu()
torchair.use_internal_format_weight(model)
assert torch_npu.get_npu_format(model[0].weight) == torch_npu.Format.FRACTAL_NZ
assert torch_npu.get_npu_format(model[0].bias) == torch_npu.Format.ND
opt = torch.compile(model, backend=torchair.get_npu_backend())
with torch.no_grad(), proof.compiled(), proof.replayed(2):
    for _ in range(3):
        proof.close(opt(x.npu()), want)
