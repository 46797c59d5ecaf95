"""A script for CUDA, with one more import."""

import torch
import torch_npu
from torch._inductor.codecache import CacheBase
from torch_npu.contrib import transfer_to_npu

assert torch.cuda.is_available()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.cuda.manual_seed_all(0)
model = torch.nn.Sequential(
    torch.nn.Linear(4, 8, device="cuda"), torch.nn.ReLU(), torch.nn.Linear(8, 2)
).cuda()
x = torch.randn(3, 4, device=device)
assert x.is_cuda
assert x.device.type == "npu"
assert torch.ones(1, device="cuda:1").device == torch.device("npu:1")
torch.cuda.set_device(torch.device("cuda:1"))
assert torch.cuda.current_device() == 1
torch.cuda.set_device(torch.device("cuda", 0))
assert torch.cuda.max_memory_allocated(device) > 0
with torch.device("cuda"):
    assert torch.zeros(1).is_cuda
torch.set_default_device("cuda")
assert torch.zeros(1).is_cuda
torch.set_default_device("cpu")
assert torch.ones(1).to("cuda", torch.float16).device.type == "npu"
assert torch.ones(1).cuda(non_blocking=True).device.type == "npu"
scaler, steps = torch.amp.GradScaler("cuda"), torch.optim.SGD(model.parameters(), 0.1)
with torch.autocast("cuda", dtype=torch.bfloat16):
    out = model(x)
assert out.dtype == torch.bfloat16
scaler.scale(out.float().sum()).backward()
scaler.step(steps)
scaler.update()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    y = x + 1
torch.cuda.current_stream().wait_stream(stream)
torch.cuda.synchronize()
generator = torch.Generator(device="cuda")
assert isinstance(generator, torch.Generator)
assert torch.rand(2, generator=generator, device=device).device.type == "npu"
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = x * 2
graph.replay()
assert torch.equal(z, x * 2)
opt = torch.compile(lambda x: torch.ones(3, device="cuda") + x.cuda(), backend="npugraph_ex")
assert opt(torch.zeros(3, device="cuda")).tolist() == [1.0] * 3
assert torch.cuda.memory_allocated() > 0
assert x.cpu().cuda("cuda:1").device == torch.device("npu:1")
assert torch.nn.Linear(1, 1).cuda(torch.device("cuda", 1)).weight.device.index == 1
assert x.type("torch.cuda.HalfTensor").type() == "torch.npu.HalfTensor"
watched = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
with torch.profiler.profile(activities=watched) as profile:
    y = x + 1
assert any(row.key == "aten::add" for row in profile.key_averages())
assert CacheBase.get_system()["hash"], "Inductor, which asks torch.cuda about the device, has a key"
