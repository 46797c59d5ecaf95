"""What passes between the processes of a group: the four steps that ops which communicate are made of.

A group is known by the name that torch's functional collectives know it by. With one rank every step is the
local part, and no process group is asked for. On fake tensors and in traces the steps are those collectives.
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
    """Is there any process group?"""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def size_of(group: str) -> int:
    """How many processes a group has; one where there are no groups at all."""
    return _found(group).size() if has_groups() else 1


def check_group(group: str, ranks: int, rank: int | None = None) -> None:
    """The group has as many processes as the op was told, and this is the one it was told."""
    if ranks == 1:
        return
    if not has_groups():
        raise BadGroup(f"{ranks} ranks, and no process group", got=f"group {group!r}", next=_START)
    found = _found(group)
    if found.size() != ranks or (rank is not None and found.rank() != rank):
        told = "" if rank is None else f"   rank {rank}"
        raise BadGroup(
            f"the ranks of group {group!r} are not those that the op was given",
            got=f"world size {ranks}{told}",
            near=f"the group has {found.size()} ranks, and this is rank {found.rank()}",
            next="give the size of the group and this process's rank in it",
        )


def _found(group: str) -> Any:
    try:
        return process_group(group)
    except (RuntimeError, ValueError) as error:
        raise BadGroup(f"no process group is called {group!r}", got=str(error), next=_START) from error


def check_sum(reduce_op: str) -> None:
    """Sums are what these ops are defined for."""
    if reduce_op != "sum":
        raise UnsupportedOp(f"reduce_op {reduce_op!r} of an op that computes and communicates", near="'sum'")


def check_parts(x: torch.Tensor, dim: int, ranks: int) -> None:
    """A dim is cut into one part per rank."""
    if x.shape[dim] % ranks:
        raise BadGroup(
            f"dim {dim} is cut into one equal part per rank",
            got=f"shape {list(x.shape)}   ranks {ranks}",
            next=f"fill it up to a multiple of {ranks}",
        )


def all_gather(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """The tensors of all ranks, one below the other."""
    if ranks == 1:
        return x
    check_group(group, ranks)
    return collectives.gathered(x, ranks, group)


def all_reduce(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """The sum over all ranks."""
    if ranks == 1:
        return x
    check_group(group, ranks)
    return collectives.all_reduced(x, "sum", group)


def reduce_scatter(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """This rank's part, along the first dim, of the sum over all ranks."""
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
    """Part r of the first dim goes to rank r; what comes stands in the order of ranks. Parts are equal, or
    have as many rows as `received` and `sent` say.
    """
    if ranks == 1:
        return x
    check_group(group, ranks)
    if received is None or sent is None:
        check_parts(x, 0, ranks)
        received = sent = [x.shape[0] // ranks] * ranks
    return collectives.exchanged(x, received, sent, group)
