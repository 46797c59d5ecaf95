"""Provide `torch_npu.distributed`: the `hccl` backend, and collectives with parts of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed
from torch.distributed import ReduceOp

from torchair.ops.distributed.distributed_calls import trace_plugin
from torchair.sim.plugin.hccl import ProcessGroupHCCL, register

__all__ = [
    "ProcessGroupHCCL",
    "all_gather_into_tensor_uneven",
    "is_hccl_available",
    "reduce_scatter_tensor_uneven",
]

register()


def is_hccl_available() -> bool:
    """Return whether the `hccl` backend exists."""
    return distributed.is_available()


def all_gather_into_tensor_uneven(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Gather the parts of all processes; `output_split_sizes` has the number of rows of each part."""
    parts = _parts(output_tensor, output_split_sizes, group)
    mine = parts[distributed.get_rank(group)]
    assert mine.shape == input_tensor.shape, (
        f"this part has {tuple(mine.shape)}, the input {tuple(input_tensor.shape)}"
    )
    mine.copy_(input_tensor)
    works = [
        distributed.broadcast(part, group_src=rank, group=group, async_op=True)
        for rank, part in enumerate(parts)
    ]
    return _awaited(works, async_op)


def reduce_scatter_tensor_uneven(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    input_split_sizes: Sequence[int] | None = None,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduce the inputs and return this process's part; `input_split_sizes` has the row counts."""
    whole = input_tensor.clone()
    mine = _parts(whole, input_split_sizes, group)[distributed.get_rank(group)]
    assert mine.shape == output_tensor.shape, (
        f"this part has {tuple(mine.shape)}, the output {tuple(output_tensor.shape)}"
    )
    distributed.all_reduce(whole, op, group=group)
    output_tensor.copy_(mine)
    return _awaited([distributed.barrier(group=group, async_op=True)], async_op)


def _parts(tensor: torch.Tensor, sizes: Sequence[int] | None, group: Any) -> list[torch.Tensor]:
    count = distributed.get_world_size(group)
    if sizes is None:
        assert tensor.shape[0] % count == 0, (
            f"{tensor.shape[0]} rows cannot be split into {count} equal parts"
        )
        sizes = [tensor.shape[0] // count] * count
    assert len(sizes) == count, f"{len(sizes)} sizes for {count} processes"
    assert sum(sizes) == tensor.shape[0], f"sizes {list(sizes)} for {tensor.shape[0]} rows"
    return list(tensor.split(list(sizes)))


def _awaited(works: Sequence[Any], async_op: bool) -> Any:
    for work in works:
        work.wait()
    return works[-1] if async_op else None


trace_plugin(globals())
