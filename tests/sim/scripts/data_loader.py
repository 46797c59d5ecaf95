"""A DataLoader with worker processes and pinned memory, copied without blocking."""

import proof
import torch
import torch_npu
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.arange(24.0).view(12, 2), torch.arange(12))
    loader = DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)
    total = torch.zeros(2, device="npu")
    for x, y in loader:
        assert x.is_pinned()
        assert y.is_pinned()
        total += x.npu(non_blocking=True).sum(0)
        assert y.to("npu", non_blocking=True).dtype == torch.int64
    proof.close(total, data.tensors[0].sum(0))
