"""An NPUGraph captured and replayed by hand: nothing runs at capture, and memory is where it was."""

import proof
import torch
import torch_npu

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid()).eval()
host = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid()).eval()
host.load_state_dict(model.state_dict())
model = model.npu()
static = torch.zeros(2, 4, device="npu")
side = torch.npu.Stream()
side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side), torch.no_grad():
    for _ in range(3):
        model(static)
torch.npu.current_stream().wait_stream(side)
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph), torch.no_grad():
    out = model(static)
for _ in range(3):
    x = torch.randn(2, 4)
    static.copy_(x)
    graph.replay()
    proof.close(out, host(x))
pool = torch.npu.graph_pool_handle()
first, second = torch.npu.NPUGraph(), torch.npu.NPUGraph()
with torch.npu.graph(first, pool=pool):
    a = static * 2
with torch.npu.graph(second, pool=first.pool()):
    b = a + 1
first.replay()
second.replay()
proof.close(b, x * 2 + 1)
