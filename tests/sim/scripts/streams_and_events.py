"""Work on two streams, ordered by events; times are taken."""

import proof
import torch
import torch_npu

x = torch.randn(64, 64)
given = x.npu()
side = torch.npu.Stream(priority=-1)
assert side.priority == -1
assert torch.npu.default_stream().priority == 0
start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
start.record()
with torch.npu.stream(side):
    side.wait_event(start)
    y = given @ given
    y.record_stream(side)
    end.record()
torch.npu.current_stream().wait_event(end)
z = y + 1
torch.npu.synchronize()
proof.close(z, x @ x + 1, rtol=1e-4, atol=1e-4)
assert start.elapsed_time(end) >= 0
assert end.query()
assert side.query()
assert side != torch.npu.current_stream()
