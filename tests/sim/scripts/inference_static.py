"""Inference of a convolutional network with known sizes, in both modes."""

import proof
import torch
import torch_npu

import torchair

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1),
    torch.nn.BatchNorm2d(8),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(8, 5),
).eval()
x = torch.randn(2, 3, 16, 16)
with torch.no_grad():
    want = model(x)
model = model.npu()
for mode in ("max-autotune", "npugraph_ex"):
    torch.compiler.reset()
    config = torchair.CompilerConfig()
    config.mode = mode
    npu_backend = torchair.get_npu_backend(compiler_config=config)
    opt_model = torch.compile(model, backend=npu_backend, dynamic=False, fullgraph=True)
    with torch.no_grad(), proof.compiled(), proof.replayed(2):
        for _ in range(3):
            proof.close(opt_model(x.npu()), want, rtol=1e-4, atol=1e-5)
