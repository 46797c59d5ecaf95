"""DistributedDataParallel over hccl: gradients are those of the whole batch."""

import copy
import tempfile

import torch
import torch_npu
from torch import distributed as dist
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel


def work(rank, store):
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    host = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    x = torch.randn(6, 4)
    model = DistributedDataParallel(copy.deepcopy(host).npu(), device_ids=[rank])
    host(x).square().mean().backward()
    model(x[rank * 3 : rank * 3 + 3].npu()).square().mean().backward()
    for mine, other in zip(model.module.parameters(), host.parameters(), strict=True):
        assert mine.grad.device == torch.device("npu", rank)
        torch.testing.assert_close(mine.grad.cpu(), other.grad)
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(work, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
