"""Two processes: collectives inside compiled functions, in both modes, and operators that name a group."""

import sys
import tempfile

import torch
import torch_npu
import torchair
from torch import distributed as dist
from torch import multiprocessing


class Block(torch.nn.Module):
    """A feed-forward block whose hidden part is divided among the ranks."""

    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(0)
        up, down = torch.randn(8, 16), torch.randn(16, 8)
        self.up = torch.nn.Parameter(up.chunk(2, 1)[rank].clone())
        self.down = torch.nn.Parameter(down.chunk(2, 0)[rank].clone())
        self.whole = up, down

    def forward(self, x):
        y = torch.relu(x @ self.up) @ self.down
        dist.all_reduce(y)
        return y + x


def several(x, rank):
    """Calls that torch itself does not trace."""
    y = x * (rank + 1)
    dist.broadcast(y, 1)
    out = x.new_empty(3, x.shape[1])
    torch_npu.distributed.all_gather_into_tensor_uneven(out, y[: rank + 1], [1, 2])
    part = x.new_empty(rank + 1, x.shape[1])
    torch_npu.distributed.reduce_scatter_tensor_uneven(part, out + rank, [1, 2])
    made = [x.new_empty(rank + 1, x.shape[1]) for _ in range(2)]
    dist.all_to_all(made, [x[:1] + rank, x[1:3] + rank])
    return y.sum() + out.sum(), part, torch.cat(made)


def messages(x, rank):
    got = torch.empty_like(x)
    if rank == 0:
        dist.send(x + 1, 1)
        dist.recv(got, 1)
    else:
        dist.recv(got, 0)
        dist.send(x + 2, 0)
    return got * 2


def work(rank, store):
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", init_method=f"file://{store}", rank=rank, world_size=2)
    for mode in ("max-autotune", "reduce-overhead"):
        torch._dynamo.reset()
        config = torchair.CompilerConfig()
        config.mode = mode
        backend = torchair.get_npu_backend(compiler_config=config)
        with torch.no_grad():
            block = Block(rank)
            up, down = block.whole
            model = torch.compile(block.npu(), backend=backend, fullgraph=True)
            for seed in range(3):
                torch.manual_seed(seed)
                x = torch.randn(4, 8)
                got = model(x.npu())
                torch.testing.assert_close(got.cpu(), torch.relu(x @ up) @ down + x, rtol=1e-4, atol=1e-4)
            x = torch.arange(12.0).reshape(3, 4)
            for fn in (several, messages):
                want = fn(x.npu(), rank)
                compiled = torch.compile(fn, backend=backend, fullgraph=True)
                for _ in range(3):
                    torch.testing.assert_close(compiled(x.npu(), rank), want)
    ranks = [0, 1]
    x = torch.full((2,), float(rank), device="npu")
    assert torch.ops.npu_define.broadcast(x, 1, "", ranks, 2).tolist() == [1.0, 1.0]
    assert torch.ops.npu_define.allgather_in_tensor(x.new_empty(4), x, "", ranks, 2).tolist() == [0, 0, 1, 1]
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(multiprocessing.spawn(work, (f"{tempfile.mkdtemp()}/store",), nprocs=2))
