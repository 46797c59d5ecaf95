"""A PrivateUse1 device in Python: its tensors use host memory, and Python runs their ops."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["as_tensor_of", "host_of", "natively", "put_at", "register_device", "run_ops_by", "window"]

KEY = "PrivateUse1"
_HOST = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_LIBRARIES: list[Any] = []
_KEPT: list[Any] = []  # torch stores only their addresses


def register_device() -> None:
    """Register one device of this type in torch."""

    kinds: Any = torch._C._acc
    answers = dict.fromkeys(("is_available", "has_primary_context", "is_built"), lambda *_: True)
    hooks = type("Hooks", (kinds.PrivateUse1Hooks,), answers)()
    kind = torch._C._autograd.DeviceType.PrivateUse1
    guard = type("Guard", (kinds.DeviceGuard,), {"type_": lambda _: kind})()
    _KEPT.extend([hooks, guard])
    kinds.register_python_privateuseone_hook(hooks)
    kinds.register_python_privateuseone_device_guard(guard)
    torch.UntypedStorage.__new__ = staticmethod(_new_storage)


def _new_storage(cls: type, *args: Any, device: Any = None, **rest: Any) -> Any:
    """Create a storage. For this device, torch would look for an allocator, which only C++ can provide, and
    end the process.
    """
    given = torch.device("cpu" if device is None else device)
    if given.type != torch._C._get_privateuse1_backend_name():
        device = {} if device is None else {"device": device}
        return torch._C.StorageBase.__new__(cls, *args, **device, **rest)
    return storage_on(torch.device(given.type, given.index or 0), torch.UntypedStorage(*args, **rest))


def storage_on(device: torch.device, memory: torch.UntypedStorage) -> Any:
    """Return a storage of the device on host memory, and keep that memory alive."""
    storage = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), device, memory.nbytes())
    storage._host = memory
    return storage


def run_ops_by(kernel: Callable[..., Any], also: Sequence[Any] = ()) -> None:
    """Register a fallback kernel for all ops on the device without their own kernel: `kernel(op, *args)`. It
    also replaces torch's kernels of the ops `also`.
    """
    library = torch.library.Library("_", "IMPL")
    library.fallback(kernel, KEY)
    copies = torch.library.Library("aten", "IMPL")
    for op in also:
        copies.impl(op, functools.partial(kernel, op), KEY)
    for lazy in ("Conjugate", "Negative"):  # copies resolve these bits; torch would make another copy
        copies.impl("_copy_from", torch.library.fallthrough_kernel, lazy)
    _LIBRARIES.extend([library, copies])


def natively(op: Any, *args: Any) -> Any:
    """Run an op that reads no element with torch's kernel for the CPU."""
    return op.redispatch(_HOST, *args)


def as_tensor_of(device: torch.device, host: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device on the memory of a host tensor, which it keeps alive."""
    return put_at(torch._C._acc.create_empty_tensor([0], host.dtype), device, host)


def put_at(tensor: torch.Tensor, device: torch.device, host: torch.Tensor) -> torch.Tensor:
    """Move a tensor of the device to the memory of `host`."""
    return _laid(tensor, storage_on(device, host.untyped_storage()), host)


def window(tensor: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """Return the view on the memory of a device tensor that corresponds to the view `host` of that memory."""
    return _laid(torch._C._acc.create_empty_tensor([0], host.dtype), tensor.untyped_storage(), host)


def _laid(tensor: torch.Tensor, storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    place = like.storage_offset(), like.shape, like.stride()
    return natively(torch.ops.aten.set_.source_Storage_storage_offset, tensor, storage, *place)


def host_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device as a host tensor on the same memory."""
    memory = getattr(tensor.untyped_storage(), "_host", None)
    if memory is None:  # it has no memory
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    host = torch.empty(0, dtype=tensor.dtype)
    host.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    host = host._conj() if tensor.is_conj() else host
    return host._neg_view() if tensor.is_neg() else host
