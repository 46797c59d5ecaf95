"""Define collectives as graph operators: `torch.ops.npu_define.*`, which identify a group by its tag and
ranks. The functions for the name of a group, which torch can trace, implement them.

`distributed_calls.py` maps the calls of `torch.distributed` to these operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch.fx.node import has_side_effect

from torchair.core.errors import NotPossible
from torchair.core.torch_private.device.process_groups import group_of, name_of
from torchair.core.torch_private.operators.schemas import collective, has_operator, register_fake

SEND, RECEIVE = "_send", "_recv"
_GROUP = "str tag, int[] ranks, int group_size"
_UNEVEN = "str tag, int[] rank_list, int group_size"
SCHEMAS = (
    f"allgather(Tensor[] tensor_list, Tensor input, {_GROUP}) -> Tensor[]",
    f"allgather_in_tensor(Tensor out, Tensor input, {_GROUP}) -> Tensor",
    f"_allgather_in_tensor_shape(Tensor input, SymInt[] output_shape, {_GROUP}) -> Tensor",
    f"allgather_in_tensor_uneven(Tensor input_tensor, SymInt send_count, SymInt[] recv_counts, {_UNEVEN}, "
    "SymInt[] recv_displacements) -> Tensor",
    "all_to_all_single_npu(Tensor input, SymInt[] send_counts, SymInt[] send_displacements, "
    f"SymInt[] recv_counts, SymInt[] recv_displacements, {_GROUP}) -> Tensor",
    f"broadcast(Tensor self, int? src, {_GROUP}, int? group_src=None) -> Tensor",
    "reduce_scatter_tensor_uneven(Tensor input_tensor, SymInt[] send_counts, SymInt recv_count, "
    f"str reduce_type, {_UNEVEN}, SymInt[] send_displacements) -> Tensor",
    f"{SEND}(Tensor input_tensor, int? dst, int[] ranks, str pg_tag, int tag, int? group_dst=None, "
    "int[]? shape=None) -> ()",
    f"{RECEIVE}(Tensor out_tensor, int? src, int[] ranks, str pg_tag, int tag, int? group_src=None, "
    "int[]? shape=None) -> Tensor",
)
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda parts: parts.sum(0, dtype=parts.dtype),
    "prod": lambda parts: parts.prod(0, dtype=parts.dtype),
    "product": lambda parts: parts.prod(0, dtype=parts.dtype),
    "min": lambda parts: parts.amin(0),
    "max": lambda parts: parts.amax(0),
}
"""Reductions over ranks by name. torch uses `product`, the IR `prod`."""


# Collectives by group name


def all_reduced(x: torch.Tensor, reduction: str, group: str) -> torch.Tensor:
    """Return the reduction over all ranks."""
    return _reduced("all_reduce", x, reduction, group)


def gathered(x: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Return the tensors of all ranks, concatenated along the first dim."""
    return _moved("all_gather_into_tensor", x.reshape(1) if x.ndim == 0 else x, ranks, group)


def scattered(x: torch.Tensor, reduction: str, ranks: int, group: str) -> torch.Tensor:
    """Return this rank's part, along the first dim, of the reduction over all ranks."""
    return _reduced("reduce_scatter_tensor", x, reduction, ranks, group)


def sent_from(x: torch.Tensor, root: int, group: str) -> torch.Tensor:
    """Return the tensor of rank `root` of the group."""
    return _moved("broadcast", x, root, group)


def exchanged(x: torch.Tensor, received: Sequence[int], sent: Sequence[int], group: str) -> torch.Tensor:
    """Exchange rows with all ranks: `sent` and `received` have the row counts per rank, in rank order."""
    return _moved("all_to_all_single", x, list(received), list(sent), group)


def gathered_uneven(x: torch.Tensor, counts: Sequence[int], group: str) -> torch.Tensor:
    """Return the concatenated tensors of all ranks; `counts` has their numbers of elements."""
    flat = x.reshape(-1)
    everything = exchanged(flat.repeat(len(counts)), counts, [flat.shape[0]] * len(counts), group)
    return everything.reshape(-1, *x.shape[1:])


def scattered_uneven(
    x: torch.Tensor, counts: Sequence[int], own: int, reduction: str, group: str
) -> torch.Tensor:
    """Return this rank's `own` elements of the reduction; `counts` has the number of elements per rank."""
    if reduction not in REDUCTIONS:
        raise NotPossible(
            f"a collective does not support the reduction {reduction!r}", near=", ".join(REDUCTIONS)
        )
    parts = exchanged(x.reshape(-1), [own] * len(counts), counts, group)
    return REDUCTIONS[reduction](parts.reshape(len(counts), own)).reshape(-1, *x.shape[1:])


def exchanged_elements(
    x: torch.Tensor,
    sent: Sequence[int],
    send_places: Sequence[int],
    received: Sequence[int],
    receive_places: Sequence[int],
    group: str,
) -> torch.Tensor:
    """Exchange elements like `exchanged`, with counts and offsets in elements."""
    flat = x.reshape(-1)
    if _is_dense(sent, send_places):
        flat = flat[: sum(sent)]
    else:
        parts = [flat.narrow(0, place, count) for place, count in zip(send_places, sent, strict=True)]
        flat = torch.cat(parts)
    made = exchanged(flat, received, sent, group)
    if not _is_dense(received, receive_places):
        parts, into = made.split(list(received)), made.new_zeros(_end(received, receive_places))
        for part, place, count in zip(parts, receive_places, received, strict=True):
            into.narrow(0, place, count).copy_(part)
        made = into
    return made.reshape(-1, *x.shape[1:])


def _reduced(name: str, x: torch.Tensor, *how: Any) -> torch.Tensor:
    """Reduce 16-bit integers as 32-bit ones, because not every backend supports them."""
    if x.dtype is not torch.int16:
        return collective(name, x.contiguous(), *how)
    return collective(name, x.contiguous().int(), *how).short()


def _moved(name: str, x: torch.Tensor, *how: Any) -> torch.Tensor:
    """Send one-byte values as uint8, because not every backend supports their types."""
    if x.dtype.itemsize > 1:
        return collective(name, x.contiguous(), *how)
    return collective(name, x.contiguous().view(torch.uint8), *how).view(x.dtype)


def starts(counts: Sequence[int]) -> list[int]:
    """Return the offsets of consecutive parts with these numbers of elements."""
    return [0, *accumulate(counts)][: len(counts)]


def _is_dense(counts: Sequence[int], places: Sequence[int]) -> bool:
    return list(places) == starts(counts)


def _end(counts: Sequence[int], places: Sequence[int]) -> int:
    return max(place + count for place, count in zip(places, counts, strict=True))


# The operators


def _allgather(tensor_list, input, tag, ranks, group_size):
    assert len(tensor_list) == group_size, f"{len(tensor_list)} tensors for {group_size} ranks"
    define = torch.ops.npu_define
    group = (tag, ranks, group_size)
    if all(part.shape == input.shape for part in tensor_list):
        made = define._allgather_in_tensor_shape(input, [group_size, *input.shape], *group)
        return list(made.unbind(0))
    me = group_of(tag, ranks).rank()
    return [
        define.broadcast(input if rank == me else part, None, *group, rank)
        for rank, part in enumerate(tensor_list)
    ]


def _allgather_in_tensor(out, input, tag, ranks, group_size):
    return _allgather_in_tensor_shape(input, out.shape, tag, ranks, group_size)


def _allgather_in_tensor_shape(input, output_shape, tag, ranks, group_size):
    return gathered(input, group_size, name_of(tag, ranks)).reshape(list(output_shape))


def _allgather_in_tensor_uneven(
    input_tensor, send_count, recv_counts, tag, rank_list, group_size, recv_displacements
):
    assert send_count == input_tensor.numel(), f"send_count {send_count} for {input_tensor.numel()} elements"
    return gathered_uneven(input_tensor, recv_counts, name_of(tag, rank_list))


def _all_to_all_single_npu(
    input, send_counts, send_displacements, recv_counts, recv_displacements, tag, ranks, group_size
):
    return exchanged_elements(
        input, send_counts, send_displacements, recv_counts, recv_displacements, name_of(tag, ranks)
    )


def _broadcast(self, src, tag, ranks, group_size, group_src=None):
    return sent_from(self, root_of(src, ranks, group_src), name_of(tag, ranks))


def _reduce_scatter_tensor_uneven(
    input_tensor, send_counts, recv_count, reduce_type, tag, rank_list, group_size, send_displacements
):
    return scattered_uneven(input_tensor, send_counts, recv_count, reduce_type, name_of(tag, rank_list))


def _send(input_tensor, dst, ranks, pg_tag, tag, group_dst=None, shape=None):
    group, to = group_of(pg_tag, ranks), root_of(dst, ranks, group_dst)
    torch.distributed.send(input_tensor.contiguous(), group=group, tag=tag, group_dst=to)


def _recv(out_tensor, src, ranks, pg_tag, tag, group_src=None, shape=None):
    made, group = out_tensor.new_empty(out_tensor.shape), group_of(pg_tag, ranks)
    sender = None if src is None and group_src is None else root_of(src, ranks, group_src)
    torch.distributed.recv(made, group=group, tag=tag, group_src=sender)
    return made


def root_of(src: int | None, ranks: Sequence[int], group_src: int | None) -> int:
    """Return the rank inside the group, from a global rank or a rank inside the group."""
    if group_src is not None:
        return group_src
    if src is None or src not in ranks:
        raise NotPossible(
            f"rank {src} is not in the group", got=f"ranks {list(ranks)}", next="pass a rank of the group"
        )
    return list(ranks).index(src)


def _rows(x: torch.Tensor, elements: Any) -> torch.Tensor:
    """Return memory for this number of elements, in rows like those of `x`."""
    return x.new_empty(elements // prod(x.shape[1:]), *x.shape[1:])


def _fake_uneven(input_tensor, send_count, recv_counts, tag, rank_list, group_size, recv_displacements):
    return _rows(input_tensor, sum(recv_counts))


def _fake_exchange(
    input, send_counts, send_displacements, recv_counts, recv_displacements, tag, ranks, group_size
):
    dense = _is_dense(recv_counts, recv_displacements)
    return _rows(input, sum(recv_counts) if dense else _end(recv_counts, recv_displacements))


def _fake_reduce(
    input_tensor, send_counts, recv_count, reduce_type, tag, rank_list, group_size, send_displacements
):
    return _rows(input_tensor, recv_count)


_OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "allgather": (_allgather, None),
    "allgather_in_tensor": (_allgather_in_tensor, lambda out, input, *group: input.new_empty(out.shape)),
    "_allgather_in_tensor_shape": (
        _allgather_in_tensor_shape,
        lambda input, output_shape, *group: input.new_empty(output_shape),
    ),
    "allgather_in_tensor_uneven": (_allgather_in_tensor_uneven, _fake_uneven),
    "all_to_all_single_npu": (_all_to_all_single_npu, _fake_exchange),
    "broadcast": (_broadcast, lambda self, *args, **kwargs: self.new_empty(self.shape)),
    "reduce_scatter_tensor_uneven": (_reduce_scatter_tensor_uneven, _fake_reduce),
    SEND: (_send, lambda *args, **kwargs: None),
    RECEIVE: (_recv, lambda out_tensor, *args, **kwargs: out_tensor.new_empty(out_tensor.shape)),
}
"""The kernel and the fake kernel of each operator; one without a fake kernel is traced as its parts."""


def _define() -> torch.library.Library:
    library = torch.library.Library("npu_define", "FRAGMENT")
    for schema in SCHEMAS:
        name = schema.partition("(")[0]
        if has_operator(f"npu_define::{name}"):
            continue
        kernel, fake = _OPS[name]
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        key = "CompositeImplicitAutograd" if fake is None else "CompositeExplicitAutograd"
        library.impl(name, kernel, key)
        if fake is not None:
            register_fake(library, name, fake)
            has_side_effect(getattr(torch.ops.npu_define, name).default)
    return library


LIBRARY = _define()
POINT_TO_POINT = frozenset(getattr(torch.ops.npu_define, name).default for name in (SEND, RECEIVE))
"""Operators that wait for another process, so their order must not change."""
