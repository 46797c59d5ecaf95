"""Tensors and models on several devices."""

import proof
import torch
import torch_npu

import torchair

assert torch.npu.device_count() == 8
x = torch.randn(3, 4)
layers = [torch.nn.Linear(4, 4) for _ in range(3)]
want = x
for layer in layers:
    want = layer(want)
y = x.npu(0)
for index, layer in enumerate(layers):
    y = layer.to(f"npu:{index}")(y.to(f"npu:{index}"))
assert y.device == torch.device("npu:2")
proof.close(y, want)
try:
    x.npu(0) + x.npu(1)
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("devices were mixed")
with torch.npu.device(5):
    assert torch.ones(1, device="npu").device.index == 5
opt = torch.compile(lambda x: x.relu() + 1, backend=torchair.get_npu_backend(), dynamic=False)
for index in (1, 4):
    with proof.replayed(1):
        for _ in range(3):
            out = opt(x.npu(index))
        assert out.device.index == index
    proof.close(out, x.relu() + 1)
