"""Storages, streams, the allocator and the profiler: what a recording asks for."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import profiler

__all__ = [
    "STORAGE_WRAPPER_USES",
    "borrow_memory",
    "borrow_tensor",
    "capturing_getter",
    "clear_blas_workspaces",
    "end_pool_allocation",
    "is_profiling",
    "neg_view",
    "profiler",
    "raw_stream_getter",
    "same_addresses",
    "storage_id",
    "storage_use_count",
]


def borrow_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that does not keep that memory alive."""
    storage = tensor.untyped_storage()
    borrowed = borrow_memory(storage.data_ptr(), storage.nbytes(), tensor.dtype, tensor.device)
    return borrowed.set_(borrowed.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def borrow_memory(address: int, nbytes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A flat tensor over the memory at an address, which it neither owns nor frees."""
    storage = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    return torch.empty(0, dtype=dtype, device=device).set_(storage)


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the tensor's storage object; equal for views of one another, fake tensors included."""
    return tensor.untyped_storage()._cdata


neg_view: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view
"""The tensor, negated when it is read."""


storage_use_count: Callable[[int], int] = torch._C._storage_Use_Count
"""How many references a storage (by its `storage_id`) has: tensors, views, numpy arrays, autograd."""


def _wrapper_uses() -> int:
    probe = torch.empty(1)
    return torch._C._storage_Use_Count(storage_id(probe)) - 1


STORAGE_WRAPPER_USES = _wrapper_uses()
"""References that a storage's Python object adds once somebody asked for it; it then stays for good."""


def _same_addresses(tensors: list[Any], addresses: Sequence[int | None], indices: Sequence[int]) -> bool:
    return all(tensors[index].data_ptr() == addresses[index] for index in indices)


same_addresses: Callable[[list[Any], list[int | None], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _same_addresses
)
"""Are the tensors at these indices where `addresses`, a list as long as `tensors`, says? In C++ where torch
was built with CUDA.
"""


def raw_stream_getter(device_type: str) -> Callable[[int], int] | None:
    """A quick function from device index to the current stream's handle; None where there is no such call."""
    return _raw_call(device_type, "getCurrentRawStream")


def capturing_getter(device_type: str) -> Callable[[], bool] | None:
    """A quick function that tells whether the current stream is being captured; None where there is none."""
    return _raw_call(device_type, "isCurrentStreamCapturing")


def _raw_call(device_type: str, name: str) -> Any:
    """A device's own C call, without the Python around it; None where there is none."""
    owner = torch._C if device_type == "cuda" else getattr(getattr(torch, device_type, None), "_C", None)
    return getattr(owner, f"_{device_type}_{name}", None)


def clear_blas_workspaces(device_type: str) -> None:
    """Let go of the matmul workspaces that hang on streams: a recording then takes its own from its pool."""
    clear = getattr(torch._C, f"_{device_type}_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def end_pool_allocation(device_type: str, index: int, pool: Any) -> None:
    """After a capture that broke off: allocations stop going to its pool (they may have stopped already)."""
    end = getattr(torch._C, f"_{device_type}_endAllocateToPool", None)
    if end is not None:
        with contextlib.suppress(RuntimeError):
            end(index, pool)


def is_profiling() -> bool:
    """Is a profiler on? A named range costs microseconds even when nobody listens."""
    return profiler._is_profiler_enabled


def view_like(base: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    """The view of `base` that has the sizes, strides and offset of `sample`, as AOTAutograd makes it: both
    have one version. Of other types, `sample` itself.
    """
    if base.is_conj() != sample.is_conj():
        base = base.conj()
    if base.is_complex() and not sample.is_complex():
        base = torch.view_as_real(base)
    if base.dtype is not sample.dtype:
        return sample
    if base.is_neg() != sample.is_neg():
        base = neg_view(base)
    return base.as_strided(sample.size(), sample.stride(), sample.storage_offset())


def mark_propagated(tensor: torch.Tensor, dims: set[int]) -> None:
    """Tell Dynamo that these sizes came out of a graph as symbols."""
    have = getattr(tensor, _PROPAGATED, None)
    setattr(tensor, _PROPAGATED, dims.copy() if have is None else have | dims)


_PROPAGATED = (
    "_dynamo_propagated_dynamic_indices" if torch.__version__ >= "2.13" else "_dynamo_weak_dynamic_indices"
)


def disabled_autocast() -> Any:
    """A context without autocast."""
    return torch._C._DisableAutocast()
