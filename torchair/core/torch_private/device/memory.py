"""Storages, streams, the allocator and the profiler, for recordings."""

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
    """Return a tensor on the same memory that does not keep the memory alive."""
    storage = tensor.untyped_storage()
    borrowed = borrow_memory(storage.data_ptr(), storage.nbytes(), tensor.dtype, tensor.device)
    return borrowed.set_(borrowed.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def borrow_memory(address: int, nbytes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a flat tensor on the memory at an address, which it neither owns nor frees."""
    storage = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    return torch.empty(0, dtype=dtype, device=device).set_(storage)


def storage_id(tensor: torch.Tensor) -> int:
    """Return the identity of the tensor's storage, which is equal for views of each other, fake tensors
    included.
    """
    return tensor.untyped_storage()._cdata


neg_view: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view
"""Return the tensor with its negative bit flipped."""


storage_use_count: Callable[[int], int] = torch._C._storage_Use_Count
"""Return the number of references to a storage (by its `storage_id`): tensors, views, numpy arrays,
autograd.
"""


def _wrapper_uses() -> int:
    probe = torch.empty(1)
    return torch._C._storage_Use_Count(storage_id(probe)) - 1


STORAGE_WRAPPER_USES = _wrapper_uses()
"""References that a storage's Python object adds once it exists. It is never removed."""


def _same_addresses(tensors: list[Any], addresses: Sequence[int | None], indices: Sequence[int]) -> bool:
    return all(tensors[index].data_ptr() == addresses[index] for index in indices)


same_addresses: Callable[[list[Any], list[int | None], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _same_addresses
)
"""Return whether the tensors at these indices have the addresses in `addresses`, a list as long as `tensors`.
In C++ if torch was built with CUDA.
"""


def raw_stream_getter(device_type: str) -> Callable[[int], int] | None:
    """Return a fast function from device index to the handle of the current stream, or None if torch has
    none.
    """
    return _raw_call(device_type, "getCurrentRawStream")


def capturing_getter(device_type: str) -> Callable[[], bool] | None:
    """Return a fast function that returns whether the current stream is being captured, or None if torch has
    none.
    """
    return _raw_call(device_type, "isCurrentStreamCapturing")


def _raw_call(device_type: str, name: str) -> Any:
    """Return a C function of a device without its Python wrapper, or None if there is none."""
    owner = torch._C if device_type == "cuda" else getattr(getattr(torch, device_type, None), "_C", None)
    return getattr(owner, f"_{device_type}_{name}", None)


def clear_blas_workspaces(device_type: str) -> None:
    """Free the matmul workspaces of streams, so that a recording allocates its own ones from its pool."""
    clear = getattr(torch._C, f"_{device_type}_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def end_pool_allocation(device_type: str, index: int, pool: Any) -> None:
    """Stop allocations from a pool after a failed capture (they may have stopped already)."""
    end = getattr(torch._C, f"_{device_type}_endAllocateToPool", None)
    if end is not None:
        with contextlib.suppress(RuntimeError):
            end(index, pool)


def is_profiling() -> bool:
    """Return whether a profiler is on. A named range costs microseconds even without a profiler."""
    return profiler._is_profiler_enabled


def view_like(base: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    """Return the view of `base` with the sizes, strides and offset of `sample`, as AOTAutograd creates it:
    both share one version counter. Return `sample` itself if the dtypes differ.
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
    """Mark these sizes for Dynamo as symbols that a graph returned."""
    have = getattr(tensor, _PROPAGATED, None)
    setattr(tensor, _PROPAGATED, dims.copy() if have is None else have | dims)


_PROPAGATED = (
    "_dynamo_propagated_dynamic_indices" if torch.__version__ >= "2.13" else "_dynamo_weak_dynamic_indices"
)


def disabled_autocast() -> Any:
    """Return a context without autocast."""
    return torch._C._DisableAutocast()
