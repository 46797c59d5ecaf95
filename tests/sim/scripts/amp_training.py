"""Mixed precision with a gradient scaler, as guides for the device show it."""

import proof
import torch
import torch_npu
from torch_npu.npu import amp

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).npu()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = amp.GradScaler(init_scale=128.0, growth_interval=1, dynamic=False)
x, y = torch.randn(32, 8, device="npu"), torch.randn(32, 1, device="npu")
losses = []


class Wide(torch.autograd.Function):
    """Twice its input, computed in float32 whatever the precision around it."""

    @staticmethod
    @amp.custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, given):
        assert given.dtype == torch.float32
        return given * 2

    @staticmethod
    @amp.custom_bwd
    def backward(ctx, grad):
        assert not torch.is_autocast_enabled("npu")
        return grad * 2


for _ in range(10):
    optimizer.zero_grad()
    with amp.autocast(dtype=torch.float16):
        out = model(x)
        assert out.dtype == torch.float16
        loss = torch.nn.functional.mse_loss(Wide.apply(out), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
assert scaler.get_scale() == 128.0
assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
