"""Process groups."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Store, Work
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import ProcessGroupGloo

from torchair.core.errors import NotPossible

__all__ = [
    "ProcessGroup", "ProcessGroupGloo", "Store", "Work", "done", "group_of", "group_tag", "make_traceable",
    "name_of", "ranks_of", "serve", "size_of",
]  # fmt: skip
GroupName = Any
group_tag = distributed_c10d._get_group_tag
"""Return the tag of a group. Dynamo knows this function by identity, so it is not wrapped."""


def serve(group: ProcessGroup, backend: Any, devices: tuple[str, ...]) -> None:
    """Use the backend for the group's tensors on these devices."""
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    for device in devices:
        group._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, backend)


def done(results: Any) -> Work:
    """Return a completed work object."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(results)
    return torch._C._distributed_c10d._create_work_from_future(future)


def name_of(tag: str, ranks: Sequence[int]) -> GroupName:
    """Return the name of the group of these ranks for functional collectives."""
    return group_of(tag, ranks).group_name


def group_of(tag: str, ranks: Sequence[int]) -> ProcessGroup:
    """Return the group with these ranks and this tag.

    Raises:
        NotPossible: if there is none.
    """
    found = distributed_c10d._find_pg_by_ranks_and_tag(tag, list(ranks))
    if found is None:
        raise NotPossible(
            f"there is no process group of the ranks {list(ranks)}",
            got=f"tag {tag!r}",
            next="create it with torch.distributed.new_group() before the call",
        )
    return found


def size_of(name: GroupName) -> int:
    """Return the number of ranks of a group."""
    return distributed_c10d._resolve_process_group(name).size()


def ranks_of(name: GroupName) -> tuple[str, list[int]]:
    """Return tag and ranks of a group, which identify it for `group_of`."""
    group = distributed_c10d._resolve_process_group(name)
    return group_tag(group), distributed_c10d.get_process_group_ranks(group)


def make_traceable(rows: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
    """Make Dynamo replace calls of each first function by the second, which has the same arguments. Dynamo
    looks it up by name in torch's module of functional collectives.
    """
    for function, replacement in rows.items():
        setattr(functional, replacement.__name__, replacement)
        functional.traceable_collective_remaps[function] = replacement
