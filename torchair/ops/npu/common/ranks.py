"""Communicate between the processes of a group: the four steps of which communicating ops are composed.

A group is identified by its name in torch's functional collectives. With one rank every step is the local
part, without a process group. On fake tensors and in traces the steps are those collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchair.core.errors import BadGroup, UnsupportedOp
from torchair.core.torch_private.operators.schemas import process_group
from torchair.ops.distributed import collectives

_START = (
    "torch.distributed.init_process_group, in every process; the name is that of the group: group.group_name"
)


def has_groups() -> bool:
    """Return whether there is a process group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def size_of(group: str) -> int:
    """Return the number of processes of a group; one if there are no groups."""
    return _found(group).size() if has_groups() else 1


def check_group(group: str, ranks: int, rank: int | None = None) -> None:
    """Raise if the group does not have `ranks` processes, or this process is not `rank`."""
    if ranks == 1:
        return
    if not has_groups():
        raise BadGroup(
            f"an op needs {ranks} ranks, but there is no process group", got=f"group {group!r}", next=_START
        )
    found = _found(group)
    if found.size() != ranks or (rank is not None and found.rank() != rank):
        rank_text = "" if rank is None else f"   rank {rank}"
        raise BadGroup(
            f"the ranks of group {group!r} differ from those that the op got",
            got=f"world size {ranks}{rank_text}",
            near=f"the group has {found.size()} ranks, and this is rank {found.rank()}",
            next="pass the size of the group and the rank of this process in it",
        )


def _found(group: str) -> Any:
    try:
        return process_group(group)
    except (RuntimeError, ValueError) as error:
        raise BadGroup(f"there is no process group named {group!r}", got=str(error), next=_START) from error


def check_sum(reduce_op: str) -> None:
    """Raise if the reduction is not a sum, the only one that these ops define."""
    if reduce_op != "sum":
        raise UnsupportedOp(f"reduce_op {reduce_op!r} of an op that computes and communicates", near="'sum'")


def check_parts(x: torch.Tensor, dim: int, ranks: int) -> None:
    """Raise if a dim cannot be split into one equal part per rank."""
    if x.shape[dim] % ranks:
        raise BadGroup(
            f"cannot split dim {dim} into one equal part per rank",
            got=f"shape {list(x.shape)}   ranks {ranks}",
            next=f"pad it to a multiple of {ranks}",
        )


def all_gather(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """Return the tensors of all ranks, concatenated along the first dim."""
    if ranks == 1:
        return x
    check_group(group, ranks)
    return collectives.gathered(x, ranks, group)


def all_reduce(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """Return the sum over all ranks."""
    if ranks == 1:
        return x
    check_group(group, ranks)
    return collectives.all_reduced(x, "sum", group)


def reduce_scatter(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """Return this rank's part, along the first dim, of the sum over all ranks."""
    if ranks == 1:
        return x
    check_group(group, ranks)
    check_parts(x, 0, ranks)
    return collectives.scattered(x, "sum", ranks, group)


def all_to_all(
    x: torch.Tensor,
    group: str,
    ranks: int,
    received: Sequence[int] | None = None,
    sent: Sequence[int] | None = None,
) -> torch.Tensor:
    """Send part r of the first dim to rank r; the received parts are in rank order. Parts are equal, or have
    the row counts in `sent` and `received`.
    """
    if ranks == 1:
        return x
    check_group(group, ranks)
    if received is None or sent is None:
        check_parts(x, 0, ranks)
        received = sent = [x.shape[0] // ranks] * ranks
    return collectives.exchanged(x, received, sent, group)
