"""Memory that somebody else owns, as tensors: caches that are moved between machines."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchair.core.errors import NotPossible
from torchair.core.torch_private.device.memory import borrow_memory
from torchair.devices import device_at

__all__ = ["create_npu_tensors"]

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip


def create_npu_tensors(shape: list[int], dtype: torch.dtype, addresses: list[int]) -> list[torch.Tensor]:
    """A contiguous tensor of this shape and type over each address. The memory is not ours: it must stay for
    as long as the tensors are used, and they never free it.

    Where an address points is asked of the drivers: memory of an NPU or a CUDA device gives tensors there,
    everything else is the host's.
    """
    _check("shape", shape)
    _check("addresses", addresses)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
    if dtype not in DTYPES:
        raise ValueError(f"{dtype} cannot lie over foreign memory; these can: {', '.join(map(str, DTYPES))}")
    return [_over(address, shape, dtype) for address in addresses]


def _over(address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    if any(size < 0 for size in shape) or (nbytes and address <= 0):
        raise NotPossible(
            "no tensor can lie there", got=f"address {address:#x}, shape {list(shape)}", next="check both"
        )
    device = device_at(address) if address > 0 else torch.device("cpu")
    return borrow_memory(address, nbytes, dtype, device).view(tuple(shape))


def _check(name: str, value: Sequence[int]) -> None:
    if not isinstance(value, list | tuple) or any(type(item) is not int for item in value):
        raise TypeError(f"{name} must be a list or tuple of int, got {value!r}")
