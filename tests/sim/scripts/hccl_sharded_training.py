"""Two processes: parameters in parts (FSDP of both generations, tensor parallel, from a model on the host),
batch norm over all of the batch. Weights and gradients are those of one process with the whole batch.
"""

import copy
import tempfile

import torch
import torch_npu
from torch import distributed as dist
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import always_wrap_policy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def close(got, want):
    torch.testing.assert_close(got.detach().cpu(), want.detach(), atol=1e-5, rtol=1e-4)


def stepped(model, x):
    """After one step with clipped gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(x).square().mean().backward()
    if isinstance(model, FullyShardedDataParallel):
        model.clip_grad_norm_(0.1)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return model


def sharded(host, x, want):
    for move in (True, False):  # a model on the host goes to the device by itself
        model = copy.deepcopy(host).npu() if move else copy.deepcopy(host)
        for layer in (model[0], model[2]):
            fully_shard(layer)
        stepped(fully_shard(model), x)
        for mine, other in zip(model.parameters(), want.parameters(), strict=True):
            assert mine.device.type == "npu"
            close(mine.full_tensor(), other)
    offloaded = fully_shard(copy.deepcopy(host), offload_policy=CPUOffloadPolicy())
    offloaded(x).square().mean().backward()
    assert next(offloaded.parameters()).grad.device.type == "cpu"
    older = FullyShardedDataParallel(
        copy.deepcopy(host), device_id=torch.npu.current_device(), use_orig_params=True,
        auto_wrap_policy=always_wrap_policy,
    )  # fmt: skip
    stepped(older, x)
    with FullyShardedDataParallel.summon_full_params(older):
        for mine, other in zip(older.parameters(), want.parameters(), strict=True):
            close(mine, other)


def in_parallel(host):
    mesh = init_device_mesh("npu", (2,))
    model = parallelize_module(
        copy.deepcopy(host).npu(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    x = torch.ones(3, 4)
    host.zero_grad()
    want, got = host(x), model(x.npu())
    close(got, want)
    got.sum().backward()
    want.sum().backward()
    close(model[0].weight.grad.full_tensor(), host[0].weight.grad)


def normalised(rank):
    whole, part = nn.BatchNorm2d(3), slice(0, 2) if rank == 0 else slice(2, 6)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole)).npu()
    x, weights = torch.randn(6, 3, 2, 2, requires_grad=True), torch.randn(6, 3, 2, 2)
    mine = x.detach()[part].npu().requires_grad_()
    want, got = whole(x), synced(mine)
    (want * weights).sum().backward()
    (got * weights[part].npu()).sum().backward()
    close(got, want[part])
    close(mine.grad, x.grad[part])
    close(synced.running_mean, whole.running_mean)
    close(synced.running_var, whole.running_var)
    for parameter in (synced.weight, synced.bias):
        dist.all_reduce(parameter.grad)
    close(synced.weight.grad, whole.weight.grad)
    close(synced.bias.grad, whole.bias.grad)


def together(rank):
    """Several calls as one, groups with options, parts of any shape."""
    a, b = torch.ones(2, device="npu"), torch.ones(3, device="npu")
    with dist._coalescing_manager(device=torch.device("npu", rank), async_ops=True) as works:
        dist.all_reduce(a)
        dist.all_reduce(b)
    works.wait()
    assert a.tolist() + b.tolist() == [2.0] * 5
    options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
    options.hccl_config = {"hccl_buffer_size": 200}
    group = dist.new_group([0, 1], backend="hccl", pg_options=options)
    made = torch.empty(2, 1, 3, device="npu")
    dist.all_gather_into_tensor(made, torch.full((3,), float(rank), device="npu"), group=group)
    assert made.flatten().tolist() == [0.0] * 3 + [1.0] * 3
    made = torch.empty(3, device="npu")
    dist.reduce_scatter_tensor(made, torch.arange(6.0, device="npu").view(2, 3), group=group)
    assert made.tolist() == [6 * rank, 6 * rank + 2, 6 * rank + 4]


def work(rank, store):
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    x = torch.randn(6, 4)
    sharded(host, x[3 * rank : 3 * rank + 3].npu(), stepped(copy.deepcopy(host), x))
    in_parallel(host)
    normalised(rank)
    together(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(work, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
