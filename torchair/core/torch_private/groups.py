"""Groups of processes."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Store, Work
from torch.distributed.distributed_c10d import ProcessGroupGloo

__all__ = ["ProcessGroup", "ProcessGroupGloo", "Store", "Work", "done", "serve"]


def serve(group: ProcessGroup, backend: Any, devices: tuple[str, ...]) -> None:
    """The backend carries the group's tensors of these devices."""
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    for device in devices:
        group._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, backend)


def done(results: Any) -> Work:
    """A piece of work that is done."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(results)
    return torch._C._distributed_c10d._create_work_from_future(future)
