"""Sizes that change from call to call: one graph for all, and a recording for those that come often."""

import proof
import torch
import torch_npu

import torchair

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()
host = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()
host.load_state_dict(model.state_dict())
opt_model = torch.compile(model.npu(), backend=torchair.get_npu_backend(), dynamic=True)
with torch.no_grad(), proof.compiled(1), proof.replayed(3):
    for batch, length in ((2, 5), (3, 7)) * 7:
        x = torch.randn(batch, length, 8)
        proof.close(opt_model(x.npu()), host(x), rtol=1e-4, atol=1e-5)
