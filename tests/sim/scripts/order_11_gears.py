"""Three sizes: one graph for all, a recording for each."""

import proof
import torch
import torch_npu

import torchair

model = torch.nn.Linear(4, 4).eval()
opt = torch.compile(model.npu(), backend=torchair.get_npu_backend(), dynamic=True)
host = torch.nn.Linear(4, 4)
host.load_state_dict(model.state_dict())
with torch.no_grad(), proof.compiled(1), proof.replayed(3):
    for size in (2, 4) * 4:
        x = torch.randn(size, 4)
        given = x.npu()
        torchair.inference.set_dim_gears(given, {0: [1, 2, 4]})
        proof.close(opt(given), host(x))
