"""Two processes, every collective on tensors of the device, and one inside a graph."""

import sys
import tempfile

import torch
import torch_npu
from torch import distributed as dist
from torch import multiprocessing


def npu(*values):
    return torch.tensor(values, device="npu")


def work(rank, store):
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", init_method=f"file://{store}", rank=rank, world_size=2)
    assert dist.get_backend() == "hccl"
    dist.barrier(device_ids=[rank])
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu"))
    assert backend.get_hccl_comm_name(rank)
    x = npu(1.0 + rank, 2.0)
    dist.all_reduce(x)
    assert x.tolist() == [3.0, 4.0]
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    x = npu(float(rank)).bfloat16()
    dist.broadcast(x, 1)
    assert x.tolist() == [1.0]
    parts = [torch.empty(1, device="npu") for _ in range(2)]
    dist.all_gather(parts, npu(float(rank)))
    assert [part.item() for part in parts] == [0.0, 1.0]
    out = torch.empty(2, device="npu")
    dist.reduce_scatter(out, [npu(1.0, 2.0), npu(3.0, 4.0)])
    assert out.tolist() == ([2.0, 4.0] if rank == 0 else [6.0, 8.0])
    dist.all_to_all_single(out, npu(10.0 * rank, 10.0 * rank + 1))
    assert out.tolist() == [rank, 10.0 + rank]
    made = [torch.empty(1, device="npu"), torch.empty(2, device="npu")] if rank else [
        torch.empty(1, device="npu"), torch.empty(1, device="npu")]  # fmt: skip
    given = [npu(0.0), npu(1.0)] if rank == 0 else [npu(2.0), npu(3.0, 4.0)]
    dist.all_to_all(made, given)
    assert [part.tolist() for part in made] == ([[0.0], [2.0]] if rank == 0 else [[1.0], [3.0, 4.0]])
    if rank == 0:
        dist.send(npu(1, 2, 3), 1)
    else:
        got = torch.empty(3, dtype=torch.int64, device="npu")
        dist.recv(got, 0)
        assert got.tolist() == [1, 2, 3]
    points(rank)
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    uneven(rank)
    with_gaps(rank)
    in_a_graph(rank)
    dist.barrier()
    dist.destroy_process_group()


def points(rank):
    """Large enough that neither fits into a buffer of the system's: both are under way at the same time."""
    mine, other = torch.full((1 << 20,), float(rank), device="npu"), torch.empty(1 << 20, device="npu")
    both = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for each in dist.batch_isend_irecv(both):
        each.wait()
    assert other[-1].item() == 1 - rank


def uneven(rank):
    whole = torch.empty(5, 2, device="npu")
    part = torch.full((2 + rank, 2), float(rank), device="npu")
    torch_npu.distributed.all_gather_into_tensor_uneven(whole, part, [2, 3])
    assert whole[:, 0].tolist() == [0, 0, 1, 1, 1]
    part = torch.empty(2 + rank, device="npu")
    torch_npu.distributed.reduce_scatter_tensor_uneven(part, torch.arange(5.0, device="npu"), [2, 3])
    assert part.tolist() == ([0, 2] if rank == 0 else [4, 6, 8])
    try:
        torch_npu.distributed.all_gather_into_tensor_uneven(whole, part, [2, 2])
    except AssertionError:
        return
    raise SystemError("four rows are not five")


def with_gaps(rank):
    x = torch.ones(3, 2, device="npu")
    for call in (dist.all_reduce, lambda column: dist.broadcast(column, 0)):
        try:
            call(x[:, 0])
        except RuntimeError as error:
            assert "a tensor with gaps" in str(error)
        else:
            raise SystemError("memory between the elements was overwritten")
    assert x.sum() == 6
    dist.all_reduce(x.t())
    assert x.sum() == 12


def in_a_graph(rank):
    x, graph = torch.ones(2, device="npu"), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * (rank + 1)
        dist.all_reduce(y)
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [3 * value] * 2


if __name__ == "__main__":
    multiprocessing.spawn(work, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
