"""Provide the `hccl` backend of `torch.distributed` for tensors of the device, implemented with gloo.

Gloo accesses the memory of the tensors as host memory, so no data is copied. A call on a captured stream
sends nothing: it becomes a task of the graph, and every replay sends.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from torchair.core.errors import NotPossible
from torchair.core.native.memory_overlap import is_dense
from torchair.core.torch_private.device.process_groups import (
    ProcessGroup,
    ProcessGroupGloo,
    Store,
    Work,
    done,
    serve,
)
from torchair.core.torch_private.fake.pytree import flatten, unflatten
from torchair.sim.native import shim
from torchair.sim.npu.device import current_device

NAME = "hccl"
CALLS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base",
    "all_gather_single", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced", "gather", "scatter",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced", "alltoall_base", "all_to_all_single", "send", "recv", "recv_anysource",
    "barrier",
)  # fmt: skip
"""Methods that versions of torch call on groups; older versions call those with an underscore."""
FLAT = (
    "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced", "all_gather_single_coalesced",
    "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
)  # fmt: skip
"""Calls with concatenated parts: gloo requires rows, the hardware accepts any shapes."""

DENSE = ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "reduce_scatter", "scatter")
"""Calls for which gloo uses the memory from the first element on and ignores the strides."""

Call = Callable[[Sequence[torch.Tensor]], Any]
_captured: dict[int, Call] = {}
_kept: list[Any] = []
"""Gloo groups, which live as long as the process. Destroying one joins its thread while Python waits, and the
thread may wait for Python to release its last call.
"""
_numbers = itertools.count()
_library = torch.library.Library("torchair_sim", "DEF")
_library.define("collective(Tensor(a!)[] tensors, int number) -> ()")


def _collective(tensors: Sequence[torch.Tensor], number: int) -> None:
    """Run on the backing device: not at all during capture, but in every replay."""
    if not shim().is_capturing(current_device()):
        _captured[number](tensors)


for _key in ("CPU", "CUDA"):
    _library.impl("collective", _collective, _key)


def _shown(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the same memory that gloo accepts; gloo keeps a reference to it."""
    return shim().show(tensor) if tensor.device.type == "npu" else tensor


def _check_dense(name: str, tensor: torch.Tensor) -> None:
    if not is_dense(tensor):
        raise NotPossible(
            f"{name} does not support a tensor with gaps or overlapping elements",
            got=f"shape {list(tensor.shape)}   strides {list(tensor.stride())}",
            next="pass a contiguous copy and copy the result back; compiled functions do this",
        )


class Gloo(ProcessGroupGloo):
    """The gloo group of a process group, with the methods that scripts call on the backend of the device."""

    owner: Callable[[], ProcessGroup | None]

    def get_hccl_comm_name(self, rank: int, init_comm: bool = True) -> str:
        """Return the name of the group for ops that compute and communicate."""
        group = self.owner()
        assert group is not None, "the caller belongs to the group"
        return group.group_name


@dataclass
class Options:
    """Options for links and buffers of the hardware; stored without effect."""

    hccl_config: dict[str, Any] = field(default_factory=dict)
    is_high_priority_stream: bool = False
    op_timeout: timedelta | None = None
    global_ranks_in_group: list[int] = field(default_factory=list)
    group_id: str = ""


class WorkGroup(Work):
    """Several pieces of work as one."""

    def __init__(self, parts: Sequence[Work]) -> None:
        super().__init__()
        self._parts = parts

    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        """Wait until all are done."""
        for part in self._parts:
            _ = part.wait() if timeout is None else part.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether all are done."""
        return all(part.is_completed() for part in self._parts)


class ProcessGroupHCCL(ProcessGroup):
    """A process group for tensors on the simulated device; tensors on the host work too."""

    Options = Options

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg] - without a store it is one of Python's
        backend = Gloo(store, rank, size, timeout=timeout)
        backend.owner = weakref.ref(self)
        self._gloo = ProcessGroup(store, rank, size)
        self._together: list[Work] | None = None
        _kept.append((self._gloo, backend))
        serve(self._gloo, backend, ("cpu", "cuda", "npu"))
        serve(self, backend, ("cpu", "npu"))

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return NAME

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work:
        """Call a method of the gloo group with tensors that gloo accepts."""
        leaves, spec = flatten((args, kwargs))
        places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        if name in DENSE:
            for at in places:
                _check_dense(name, leaves[at])

        def carry(tensors: Sequence[torch.Tensor]) -> Work:
            given = list(leaves)
            for at, tensor in zip(places, tensors, strict=True):
                given[at] = tensor.view(-1) if name in FLAT and tensor.is_contiguous() else tensor
            args, kwargs = unflatten(given, spec)
            return getattr(self._gloo, name)(*args, **kwargs)

        return self._given(carry, [leaves[at] for at in places])

    def _given(self, carry: Callable[[Sequence[torch.Tensor]], Work], tensors: list[torch.Tensor]) -> Work:
        if not shim().is_capturing(current_device()):
            work = carry([_shown(tensor) for tensor in tensors])
            if self._together is not None:
                self._together.append(work)
            return work
        number = next(_numbers)
        _captured[number] = lambda given: carry(given).wait()
        torch.ops.torchair_sim.collective(tensors, number)
        return done(tensors)

    def _start_coalescing(self, device: torch.device) -> None:
        """Begin to combine calls into one piece of work."""
        self._together = []

    def _end_coalescing(self, device: torch.device) -> Work:
        """Return the combined work."""
        works, self._together = self._together or [], None
        return WorkGroup(works)

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        """Exchange lists of tensors with one-tensor calls, because gloo supports only those."""
        parts = len(input_tensors)

        def carry(tensors: Sequence[torch.Tensor]) -> Work:
            given, made = tensors[:parts], tensors[parts:]
            flat = torch.cat([tensor.reshape(-1) for tensor in given])
            sizes = [tensor.numel() for tensor in made]
            into = flat.new_empty(sum(sizes))
            self._gloo.alltoall_base(into, flat, sizes, [tensor.numel() for tensor in given]).wait()
            for tensor, part in zip(made, into.split(sizes), strict=True):
                tensor.copy_(part.view(tensor.shape))
            return done(list(made))

        return self._given(carry, [*input_tensors, *output_tensors])


def _forwarded(name: str) -> Callable[..., Work]:
    def call(self: ProcessGroupHCCL, *args: Any, **kwargs: Any) -> Work:
        return self.call(name, args, kwargs)

    call.__name__ = name
    return call


for _name in CALLS:
    if hasattr(ProcessGroup, _name):
        setattr(ProcessGroupHCCL, _name, _forwarded(_name))


def register() -> None:
    """Register the backend, so that `init_process_group("hccl")` works."""
    if distributed.is_available() and not hasattr(distributed.Backend, NAME.upper()):
        distributed.Backend.register_backend(NAME, ProcessGroupHCCL, devices=["npu"])
        distributed.is_hccl_available = distributed.is_available  # type: ignore[attr-defined]
