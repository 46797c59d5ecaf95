"""Create tensors over external memory, such as caches that move between machines."""

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
    """Create a contiguous tensor of this shape and type over each address.

    The tensors do not own the memory: it must stay allocated as long as they are used, and they never free
    it. The device drivers report what an address points to: memory of an NPU or CUDA device becomes a tensor
    of that device, all other memory a CPU tensor.

    Args:
        shape: Sizes of each tensor.
        dtype: Data type of each tensor.
        addresses: Memory addresses, one for each tensor.

    Returns:
        One tensor per address.

    Raises:
        TypeError: `shape` or `addresses` are not lists of int, or `dtype` is not a torch.dtype.
        ValueError: External memory of this type is not supported.
    """
    _check("shape", shape)
    _check("addresses", addresses)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
    if dtype not in DTYPES:
        raise ValueError(
            f"cannot create tensors of {dtype} over external memory; supported: {', '.join(map(str, DTYPES))}"
        )
    return [_over(address, shape, dtype) for address in addresses]


def _over(address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    if any(size < 0 for size in shape) or (nbytes and address <= 0):
        raise NotPossible(
            "cannot create a tensor at this address",
            got=f"address {address:#x}, shape {list(shape)}",
            next="check the address and the shape",
        )
    device = device_at(address) if address > 0 else torch.device("cpu")
    return borrow_memory(address, nbytes, dtype, device).view(tuple(shape))


def _check(name: str, value: Sequence[int]) -> None:
    if not isinstance(value, list | tuple) or any(type(item) is not int for item in value):
        raise TypeError(f"{name} must be a list or tuple of int, got {value!r}")
