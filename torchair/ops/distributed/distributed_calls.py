"""Replace calls of `torch.distributed` in graphs with traceable functions that have the same arguments and
results. torch traces some calls itself; these functions replace the others, and the calls that it traces only
partly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import distributed
from torch.distributed import ReduceOp

from torchair.core.torch_private.device.process_groups import group_tag, make_traceable
from torchair.ops.distributed.collectives import gathered, starts

REDUCTIONS = {ReduceOp.SUM: "sum", ReduceOp.MIN: "min", ReduceOp.MAX: "max", ReduceOp.PRODUCT: "prod"}


def _facts(group: Any) -> tuple[str, list[int], int]:
    """Return the tag, the ranks and the number of ranks."""
    group = group or distributed.group.WORLD
    ranks = distributed.get_process_group_ranks(group)
    return group_tag(group), ranks, len(ranks)


def _traced_broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    assert not async_op, "broadcast with async_op=True cannot be compiled"
    tag, ranks, size = _facts(group)
    tensor.copy_(torch.ops.npu_define.broadcast(tensor, src, tag, ranks, size, group_src))


def _traced_all_gather(tensor_list, tensor, group=None, async_op=False):
    assert not async_op, "all_gather with async_op=True cannot be compiled"
    tag, ranks, size = _facts(group)
    assert len(tensor_list) == size, f"all_gather: {len(tensor_list)} tensors for {size} ranks"
    parts = torch.ops.npu_define.allgather(tensor_list, tensor, tag, ranks, size)
    for into, part in zip(tensor_list, parts, strict=True):
        into.copy_(part)


def _traced_all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    if async_op:
        raise ValueError("all_gather_into_tensor with async_op=True cannot be compiled")
    world: Any = distributed.group.WORLD
    group = group or world
    size = group.size()
    rows, *rest = input_tensor.shape if input_tensor.ndim else (1,)
    joined, stacked = (size * rows, *rest), (size, *input_tensor.shape)
    if output_tensor.shape != joined and output_tensor.shape != stacked:
        raise ValueError(
            f"all_gather_into_tensor of {tuple(input_tensor.shape)} over {size} ranks needs an output of "
            f"{joined} or {stacked}, got {tuple(output_tensor.shape)}"
        )
    output_tensor.copy_(gathered(input_tensor, size, group.group_name).reshape(output_tensor.shape))


def _traced_all_gather_base(output_tensor, input_tensor, group=None, async_op=False):
    _traced_all_gather_into_tensor(output_tensor, input_tensor, group, async_op)


def _traced_all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    assert not async_op, "all_to_all with async_op=True cannot be compiled"
    tag, ranks, size = _facts(group)
    assert len(output_tensor_list) == len(input_tensor_list) == size, (
        f"all_to_all: {len(input_tensor_list)} and {len(output_tensor_list)} tensors for {size} ranks"
    )
    sent, received = [x.numel() for x in input_tensor_list], [x.numel() for x in output_tensor_list]
    flat = torch.cat([x.reshape(-1) for x in input_tensor_list])
    made = torch.ops.npu_define.all_to_all_single_npu(
        flat, sent, starts(sent), received, starts(received), tag, ranks, size
    )
    for into, part in zip(output_tensor_list, made.split(received), strict=True):
        into.copy_(part.reshape(into.shape))


def _traced_send(tensor, dst=None, group=None, tag=0, group_dst=None):
    group_name, ranks, _ = _facts(group)
    shape = list(tensor.shape)
    torch.ops.npu_define._send(tensor, dst, ranks, group_name, tag, group_dst, shape)


def _traced_recv(tensor, src=None, group=None, tag=0, group_src=None):
    group_name, ranks, _ = _facts(group)
    shape = list(tensor.shape)
    tensor.copy_(torch.ops.npu_define._recv(tensor, src, ranks, group_name, tag, group_src, shape))
    return src if group_src is None else ranks[group_src]


def _traced_all_gather_into_tensor_uneven(
    output_tensor, input_tensor, output_split_sizes=None, group=None, async_op=False
):
    assert not async_op, "all_gather_into_tensor_uneven with async_op=True cannot be compiled"
    tag, ranks, size = _facts(group)
    counts = _counts(output_tensor, output_split_sizes, size)
    made = torch.ops.npu_define.allgather_in_tensor_uneven(
        input_tensor, input_tensor.numel(), counts, tag, ranks, size, starts(counts)
    )
    output_tensor.copy_(made.reshape(output_tensor.shape))


def _traced_reduce_scatter_tensor_uneven(
    output_tensor, input_tensor, input_split_sizes=None, op=ReduceOp.SUM, group=None, async_op=False
):
    assert not async_op, "reduce_scatter_tensor_uneven with async_op=True cannot be compiled"
    tag, ranks, size = _facts(group)
    counts = _counts(input_tensor, input_split_sizes, size)
    made = torch.ops.npu_define.reduce_scatter_tensor_uneven(
        input_tensor, counts, output_tensor.numel(), REDUCTIONS[op], tag, ranks, size, starts(counts)
    )
    output_tensor.copy_(made.reshape(output_tensor.shape))


def _counts(tensor: torch.Tensor, rows: Any, size: int) -> list[int]:
    """Return the number of elements of each rank; without `rows`, equal parts."""
    if rows is None:
        assert tensor.shape[0] % size == 0, f"{tensor.shape[0]} rows cannot be split into {size} equal parts"
        rows = [tensor.shape[0] // size] * size
    assert sum(rows) == tensor.shape[0], (
        f"the split sizes have {sum(rows)} rows, the tensor {tensor.shape[0]}"
    )
    return [count * prod(tensor.shape[1:]) for count in rows]


TRACED: Mapping[str, Callable[..., Any]] = {
    "broadcast": _traced_broadcast,
    "all_gather": _traced_all_gather,
    "all_gather_into_tensor": _traced_all_gather_into_tensor,
    "all_gather_single": _traced_all_gather_into_tensor,
    "_all_gather_base": _traced_all_gather_base,
    "all_to_all": _traced_all_to_all,
    "send": _traced_send,
    "recv": _traced_recv,
}
"""Replacements by the name of the function in `torch.distributed`; some exist only in newer torch."""
PLUGIN: Mapping[str, Callable[..., Any]] = {
    "all_gather_into_tensor_uneven": _traced_all_gather_into_tensor_uneven,
    "reduce_scatter_tensor_uneven": _traced_reduce_scatter_tensor_uneven,
}
"""Replacements of functions in `torch_npu.distributed`."""


def trace_collectives() -> None:
    """Trace these calls as graph operators from now on, in the whole process."""
    if distributed.is_available():
        _trace(vars(distributed.distributed_c10d), TRACED)
        if (plugin := sys.modules.get("torch_npu.distributed")) is not None:
            trace_plugin(vars(plugin))


def trace_plugin(module: Mapping[str, Any]) -> None:
    """Trace the calls of a module like `torch_npu.distributed`."""
    _trace(module, PLUGIN)


def _trace(module: Mapping[str, Any], table: Mapping[str, Callable[..., Any]]) -> None:
    make_traceable({module[name]: function for name, function in table.items() if name in module})
