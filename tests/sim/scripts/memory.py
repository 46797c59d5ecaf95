"""Memory is counted, given back, and ends."""

import torch
import torch_npu

torch.npu.empty_cache()
torch.npu.reset_peak_memory_stats()
before = torch.npu.memory_allocated()
x = torch.empty(1 << 20, device="npu")
assert torch.npu.memory_allocated() - before == x.nbytes
del x
assert torch.npu.memory_allocated() == before
assert torch.npu.max_memory_allocated() - before >= 4 << 20
assert torch.accelerator.memory_allocated() == before
assert torch.accelerator.max_memory_allocated() == torch.npu.max_memory_allocated()
assert torch.accelerator.get_memory_info() == torch.npu.mem_get_info()
torch.accelerator.empty_cache()
torch.accelerator.reset_peak_memory_stats()
assert torch.npu.max_memory_allocated() == before
assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == before
free, total = torch.npu.mem_get_info()
assert 0 < free <= total == 64 << 30
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="npu")
except torch.npu.OutOfMemoryError as error:
    assert "Tried to allocate" in str(error)
else:
    raise AssertionError("a device has no such memory")
assert "allocated_bytes" in torch.npu.memory_summary()
