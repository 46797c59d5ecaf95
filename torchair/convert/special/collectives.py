"""Convert collectives of torch, which name a group, and of `npu_define`, which list ranks.

In the IR all name a group.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from torchair import ge
from torchair.convert.base.operands import (
    cast,
    like,
    pack,
    shape_of,
    size_of,
    sizes,
    static_sizes,
    torch_dtype,
)
from torchair.convert.base.registry import converter
from torchair.convert.base.report import CARRIED
from torchair.core import dtypes
from torchair.core.torch_private.device.process_groups import name_of
from torchair.core.torch_private.device.process_groups import size_of as ranks_in
from torchair.ge.builder.torch_kernel_binding import runs_torch
from torchair.ops.distributed.collectives import root_of, starts

REDUCTIONS = {"sum": "sum", "min": "min", "max": "max", "product": "prod", "prod": "prod"}
"""torch's name of a reduction -> the IR's name."""
MEAN = "avg"
"""Name of the reduction that divides a sum."""
_C10D, _INT64 = "_c10d_functional", dtypes.BY_NAME["INT64"].runtime
define = torch.ops.npu_define


def _reduction(op: str) -> str:
    if op not in REDUCTIONS:
        raise NotImplementedError(f"the IR reduces by {', '.join(REDUCTIONS)}, not by {op}")
    return REDUCTIONS[op]


def _reduced(op: Callable[..., Any], x: Any, by: str, group: str, **attrs: Any) -> Any:
    """Return the reduction by an IR op."""
    if by != MEAN or not torch_dtype(x).is_floating_point:
        return op(x, reduction=_reduction(by), group=group, **attrs)
    total = op(x, reduction="sum", group=group, **attrs)
    return ge.RealDiv(total, like(ranks_in(group), total))


def _listed(numbers: Any) -> list[Any]:
    """Return numbers as a list; if one of them is a symbol, they come as a vector."""
    if not isinstance(numbers, ge.Tensor):
        return list(numbers)
    (count,) = sizes(numbers)
    return list(ge.Unpack(numbers, num=count, axis=0, outputs=count))


def _vector(numbers: Any) -> Any:
    return pack(_listed(numbers))


def _elements(x: Any, rows: Any) -> list[Any]:
    """Return the number of elements of the given numbers of rows."""
    row = [size_of(x, dim) for dim in range(1, x.rank)]
    return [functools.reduce(_times, row, count) for count in _listed(rows)]


def _times(a: Any, b: Any) -> Any:
    return a * b if isinstance(a, int) and isinstance(b, int) else ge.Mul(cast(a, _INT64), cast(b, _INT64))


def _plus(a: Any, b: Any) -> Any:
    return a + b if isinstance(a, int) and isinstance(b, int) else ge.Add(cast(a, _INT64), cast(b, _INT64))


def _are_dense(counts: Sequence[Any], places: Sequence[Any]) -> bool:
    """Return whether parts of these sizes are adjacent; with symbols it is unknown."""
    return all(isinstance(number, int) for number in (*counts, *places)) and list(places) == starts(counts)


def _exchange(x: Any, sent: Sequence[Any], received: Sequence[Any], group: str) -> Any:
    """Exchange the given numbers of elements with each rank; use `HcomAllToAll` if all parts are equal."""
    counts, known = [*sent, *received], static_sizes(x)
    is_even = all(isinstance(count, int) and count == counts[0] for count in counts)
    if is_even and known is not None and sum(sent) == prod(known):
        return ge.HcomAllToAll(x, group=group)
    places = [[0, *itertools.accumulate(numbers, _plus)][:-1] for numbers in (sent, received)]
    return _exchange_from(x, sent, received, places, group)


def _exchange_from(
    x: Any, sent: Sequence[Any], received: Sequence[Any], places: Sequence[Sequence[Any]], group: str
) -> Any:
    return ge.HcomAllToAllV(x, pack(sent), pack(places[0]), pack(received), pack(places[1]), group=group)


def _named(group: Any) -> str:
    if not isinstance(group, str):
        raise NotImplementedError("the group has no name yet")
    return group


@converter(f"{_C10D}.all_reduce.default")
def all_reduce(input, reduce_op, group_name):
    """Return the reduction over all ranks."""
    return _reduced(ge.HcomAllReduce, input, reduce_op, _named(group_name), fusion=0)


@converter(f"{_C10D}.all_reduce_coalesced.default")
def all_reduce_coalesced(inputs, reduce_op, group_name):
    """Reduce several tensors over all ranks."""
    return [all_reduce(x, reduce_op, group_name) for x in inputs]


@converter(f"{_C10D}.all_gather_into_tensor.default")
def all_gather_into_tensor(input, group_size, group_name):
    """Return the data of all ranks, concatenated."""
    return ge.HcomAllGather(input, rank_size=group_size, group=_named(group_name))


@converter(f"{_C10D}.all_gather_into_tensor_coalesced.default")
def all_gather_into_tensor_coalesced(inputs, group_size, group_name):
    """Gather several tensors from all ranks."""
    return [all_gather_into_tensor(x, group_size, group_name) for x in inputs]


@converter(f"{_C10D}.reduce_scatter_tensor.default")
def reduce_scatter_tensor(input, reduce_op, group_size, group_name):
    """Return this rank's part of the reduction."""
    return _reduced(ge.HcomReduceScatter, input, reduce_op, _named(group_name), rank_size=group_size)


@converter(f"{_C10D}.reduce_scatter_tensor_coalesced.default")
def reduce_scatter_tensor_coalesced(inputs, reduce_op, group_size, group_name):
    """Reduce and scatter several tensors."""
    return [reduce_scatter_tensor(x, reduce_op, group_size, group_name) for x in inputs]


@converter(f"{_C10D}.broadcast.default")
def broadcast(input, src, group_name):
    """Return the data of one rank; `src` counts inside the group."""
    (result,) = ge.HcomBroadcast([input], root_rank=src, group=_named(group_name), outputs=1)
    return result


@converter(f"{_C10D}.all_to_all_single.default")
def all_to_all_single(input, output_split_sizes, input_split_sizes, group_name):
    """Exchange rows with all ranks."""
    sent, received = (_elements(input, rows) for rows in (input_split_sizes, output_split_sizes))
    return _exchange(input, sent, received, _named(group_name))


@converter(f"{_C10D}.wait_tensor.default")
def wait_tensor(tensor):
    """Make readers wait. torch's own wait op ends what torch's own collective started."""
    if runs_torch(tensor.op):
        raise NotImplementedError(CARRIED)
    return ge.Identity(tensor)


@converter(define.allgather_in_tensor.default)
def allgather_in_tensor(out, input, tag, ranks, group_size):
    """Return the data of all ranks, in the shape of `out`."""
    return ge.Reshape(all_gather_into_tensor(input, group_size, name_of(tag, ranks)), shape_of(out))


@converter(define._allgather_in_tensor_shape.default)
def allgather_in_tensor_shape(input, output_shape, tag, ranks, group_size):
    """Return the data of all ranks in a given shape."""
    return ge.Reshape(all_gather_into_tensor(input, group_size, name_of(tag, ranks)), _vector(output_shape))


@converter(define.allgather_in_tensor_uneven.default)
def allgather_in_tensor_uneven(
    input_tensor, send_count, recv_counts, tag, rank_list, group_size, recv_displacements
):
    """Return the data of all ranks, with the numbers of elements given."""
    return ge.HcomAllGatherV(
        input_tensor,
        pack([send_count]),
        _vector(recv_counts),
        _vector(recv_displacements),
        group=name_of(tag, rank_list),
    )


@converter(define.reduce_scatter_tensor_uneven.default)
def reduce_scatter_tensor_uneven(
    input_tensor, send_counts, recv_count, reduce_type, tag, rank_list, group_size, send_displacements
):
    """Return this rank's part of the reduction, with the numbers of elements given."""
    return ge.HcomReduceScatterV(
        input_tensor,
        pack([recv_count]),
        _vector(send_counts),
        _vector(send_displacements),
        reduction=_reduction(reduce_type),
        group=name_of(tag, rank_list),
    )


@converter(define.all_to_all_single_npu.default)
def all_to_all_single_npu(
    input, send_counts, send_displacements, recv_counts, recv_displacements, tag, ranks, group_size
):
    """Exchange elements with all ranks."""
    group = name_of(tag, ranks)
    sent, received = _listed(send_counts), _listed(recv_counts)
    places = _listed(send_displacements), _listed(recv_displacements)
    if all(map(_are_dense, (sent, received), places)):
        return _exchange(input, sent, received, group)
    return _exchange_from(input, sent, received, places, group)


@converter(define.broadcast.default)
def broadcast_from(self, src, tag, ranks, group_size, group_src=None):
    """Return the data of one rank."""
    return broadcast(self, root_of(src, ranks, group_src), name_of(tag, ranks))


@converter(define._send.default)
def send(input_tensor, dst, ranks, pg_tag, tag, group_dst=None, shape=None):
    """Send to one rank."""
    ge.HcomSend(
        input_tensor, group=name_of(pg_tag, ranks), sr_tag=tag, dest_rank=root_of(dst, ranks, group_dst)
    )


@converter(define._recv.default)
def recv(out_tensor, src, ranks, pg_tag, tag, group_src=None, shape=None):
    """Receive from one rank."""
    known = list(sizes(out_tensor)) if shape is None else shape
    if src is None and group_src is None:
        raise NotImplementedError("the IR needs the rank to receive from")
    if not all(isinstance(size, int) for size in known):
        raise NotImplementedError("the IR receives known sizes only")
    return ge.HcomReceive(
        group=name_of(pg_tag, ranks), sr_tag=tag, src_rank=root_of(src, ranks, group_src), shape=known,
        dtype=out_tensor.dtype,
    )  # fmt: skip
