"""Collectives, with the name of their group."""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.core.errors import UnsupportedOp
from torchair.core.kernel_params import Ints
from torchair.core.torch_private.device.process_groups import ranks_of, size_of
from torchair.engine.registry import kernel
from torchair.ops.distributed import collectives


@kernel("HcomAllReduce")
def all_reduce(x, *, reduction, group, fusion):
    """Return the reduction over all ranks; `fusion` tells a device which reductions it may join."""
    return collectives.all_reduced(x, _word(reduction), group)


@kernel("HcomAllGather")
def all_gather(x, *, rank_size, group):
    """Return the data of all ranks, concatenated."""
    return collectives.gathered(x, rank_size, group)


@kernel("HcomReduceScatter")
def reduce_scatter(x, *, reduction, group, rank_size):
    """Return this rank's part of the reduction."""
    return collectives.scattered(x, _word(reduction), rank_size, group)


@kernel("HcomBroadcast")
def broadcast(x: list[torch.Tensor], *, root_rank, group):
    """Return the data of one rank on all ranks."""
    return [collectives.sent_from(each, root_rank, group) for each in x]


@kernel("HcomAllToAll")
def all_to_all(x, *, group):
    """Exchange equal parts of the rows with each rank."""
    ranks = size_of(group)
    rows = [x.shape[0] // ranks] * ranks
    return collectives.exchanged(x, rows, rows, group)


@kernel("HcomAllToAllV")
def all_to_all_v(
    send_data,
    send_counts: Ints,
    send_displacements: Ints,
    recv_counts: Ints,
    recv_displacements: Ints,
    *,
    group,
):
    """Exchange the given numbers of elements at the given offsets with each rank, as rows like the
    sent ones.
    """
    return collectives.exchanged_elements(
        send_data, send_counts, send_displacements, recv_counts, recv_displacements, group
    )


@kernel("HcomAllGatherV")
def all_gather_v(x, send_count: Ints, recv_counts: Ints, recv_displacements: Ints, *, group):
    """Return the data of all ranks, with the given number of elements per rank."""
    _check_dense("HcomAllGatherV", recv_counts, recv_displacements)
    return collectives.gathered_uneven(x, recv_counts, group)


@kernel("HcomReduceScatterV")
def reduce_scatter_v(x, recv_count: Ints, send_counts: Ints, send_displacements: Ints, *, reduction, group):
    """Return this rank's part of the reduction, with the given number of elements per rank."""
    _check_dense("HcomReduceScatterV", send_counts, send_displacements)
    return collectives.scattered_uneven(x, send_counts, recv_count[0], reduction, group)


@kernel("HcomSend")
def send(x, *, group, sr_tag, dest_rank):
    """Send to a rank of the group."""
    tag, ranks = ranks_of(group)
    torch.ops.npu_define._send(x, None, ranks, tag, sr_tag, dest_rank)
    return ()


@kernel("HcomReceive")
def receive(*, group, sr_tag, src_rank, shape, dtype, device):
    """Receive from a rank of the group."""
    tag, ranks = ranks_of(group)
    like = torch.empty(shape, dtype=dtypes.to_torch(dtype), device=device)
    return torch.ops.npu_define._recv(like, None, ranks, tag, sr_tag, src_rank)


def _word(reduction: str) -> str:
    return "product" if reduction == "prod" else reduction


def _check_dense(op: str, counts: list[int], places: list[int] | None) -> None:
    if places is not None and list(places) != collectives.starts(counts):
        raise UnsupportedOp(
            f"{op} does not support gaps between the parts", got=f"counts {counts} at offsets {places}"
        )
