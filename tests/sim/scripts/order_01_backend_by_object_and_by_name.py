"""Compile a model with the backend object, then with the backend's name."""

import proof
import torch
import torch_npu

import torchair


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, y):
        return torch.relu(self.linear(x)) + y


model = Model().eval()
x, y = torch.randn(2, 4), torch.randn(2, 4)
want = model(x, y)
model, x, y = model.npu(), x.npu(), y.npu()
for backend in (torchair.get_npu_backend(compiler_config=None), "npu"):
    torch.compiler.reset()
    opt_model = torch.compile(model, backend=backend)
    with torch.no_grad(), proof.compiled(), proof.replayed(2):
        for _ in range(3):
            proof.close(opt_model(x, y), want)
