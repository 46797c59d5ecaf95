"""Two processes: operators that compute and communicate, eagerly and in both modes."""

import tempfile

import torch
import torch_npu
from torch import distributed as dist
from torch import multiprocessing

import torchair


def data(rank, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank + sum(shape))).half()


def close(got, want):
    torch.testing.assert_close(got.cpu().float(), want.float(), rtol=1e-2, atol=1e-2)


def work(rank, store):
    import proof  # it looks for the device, which a process that was started has once torch_npu is imported

    torch.npu.set_device(rank)
    dist.init_process_group("hccl", init_method=f"file://{store}", rank=rank, world_size=2)
    backend = dist.group.WORLD._get_backend(torch.device("npu"))
    hcom = backend.get_hccl_comm_name(rank)
    x, w = data(rank, 4, 8), data(rank, 8, 6)
    everyone = torch.cat([data(r, 4, 8) for r in range(2)])
    products = [data(r, 4, 8).float() @ data(r, 8, 6).float() for r in range(2)]
    want = everyone.float() @ w.float(), sum(products), sum(products)[2 * rank : 2 * rank + 2]

    def layer(x, w):
        y, _ = torch_npu.npu_all_gather_base_mm(x, w, hcom, 2)
        total = torch_npu.npu_mm_all_reduce_base(x, w, hcom)
        return y, total, torch_npu.npu_mm_reduce_scatter_base(x, w, hcom, 2)

    for got, expected in zip(layer(x.npu(), w.npu()), want, strict=True):
        close(got, expected)
    for mode in ("max-autotune", "npugraph_ex"):
        torch._dynamo.reset()
        config = torchair.CompilerConfig()
        config.mode = mode
        compiled = torch.compile(
            layer, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True
        )
        with proof.compiled(), proof.replayed(2):
            for _ in range(4):
                for got, expected in zip(compiled(x.npu(), w.npu()), want, strict=True):
                    close(got, expected)
    ids = torch.tensor([[0, 3], [1, 2], [3, 0], [2, 1]], dtype=torch.int32, device="npu")
    weights = torch.full((4, 2), 0.5, device="npu")
    rows, _, places, _, ends, *_ = torch_npu.npu_moe_distribute_dispatch(x.npu(), ids, hcom, 2, rank, 4)
    back = torch_npu.npu_moe_distribute_combine(rows, ids, places, ends, weights, hcom, 2, rank, 4)
    close(back, x)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(work, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
