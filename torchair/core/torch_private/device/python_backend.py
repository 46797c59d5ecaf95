"""A device of one's own without C++: its tensors lie in memory of the host, and Python runs their ops."""

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
_KEPT: list[Any] = []  # torch has only addresses of them


def register_device() -> None:
    """Torch has one device of that kind from now on."""

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
    """Torch would ask for an allocator of the device, which only C++ can give it, and end the process."""
    given = torch.device("cpu" if device is None else device)
    if given.type != torch._C._get_privateuse1_backend_name():
        device = {} if device is None else {"device": device}
        return torch._C.StorageBase.__new__(cls, *args, **device, **rest)
    return storage_on(torch.device(given.type, given.index or 0), torch.UntypedStorage(*args, **rest))


def storage_on(device: torch.device, memory: torch.UntypedStorage) -> Any:
    """A storage of the device on memory of the host, which it keeps for as long as it is looked at."""
    storage = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), device, memory.nbytes())
    storage._host = memory
    return storage


def run_ops_by(kernel: Callable[..., Any], also: Sequence[Any] = ()) -> None:
    """Every op on the device that nobody registered a kernel for is run by this one: `kernel(op, *args)`; and
    `also` these, which torch has a kernel for.
    """
    library = torch.library.Library("_", "IMPL")
    library.fallback(kernel, KEY)
    copies = torch.library.Library("aten", "IMPL")
    for op in also:
        copies.impl(op, functools.partial(kernel, op), KEY)
    for lazy in ("Conjugate", "Negative"):  # a copy computes what was put off; torch would copy for it, again
        copies.impl("_copy_from", torch.library.fallthrough_kernel, lazy)
    _LIBRARIES.extend([library, copies])


def natively(op: Any, *args: Any) -> Any:
    """An op that looks at no element, as torch does it for the host."""
    return op.redispatch(_HOST, *args)


def as_tensor_of(device: torch.device, host: torch.Tensor) -> torch.Tensor:
    """A tensor of the device on the memory of this one, which it keeps."""
    return put_at(torch._C._acc.create_empty_tensor([0], host.dtype), device, host)


def put_at(tensor: torch.Tensor, device: torch.device, host: torch.Tensor) -> torch.Tensor:
    """The tensor of the device lies where `host` does from now on."""
    return _laid(tensor, storage_on(device, host.untyped_storage()), host)


def window(tensor: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """On the memory of a tensor of the device, the view that `host` is of the same memory."""
    return _laid(torch._C._acc.create_empty_tensor([0], host.dtype), tensor.untyped_storage(), host)


def _laid(tensor: torch.Tensor, storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    place = like.storage_offset(), like.shape, like.stride()
    return natively(torch.ops.aten.set_.source_Storage_storage_offset, tensor, storage, *place)


def host_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the device as one of the host, on the same memory."""
    memory = getattr(tensor.untyped_storage(), "_host", None)
    if memory is None:  # it has none
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    host = torch.empty(0, dtype=tensor.dtype)
    host.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    host = host._conj() if tensor.is_conj() else host
    return host._neg_view() if tensor.is_neg() else host
