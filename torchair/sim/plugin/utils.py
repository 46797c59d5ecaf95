"""Provide `torch_npu.utils`: combined tensors, and asynchronous saving."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchair.core.log import logger

__all__ = [
    "get_part_combined_tensor",
    "is_combined_tensor_valid",
    "npu_combine_tensors",
    "reset_thread_affinity",
    "save_async",
    "set_thread_affinity",
]


def npu_combine_tensors(
    list_of_tensor: Sequence[torch.Tensor], require_copy_value: bool = True
) -> torch.Tensor | None:
    """Combine tensors of one type into one flat tensor and return it; by default, their values are copied."""
    if not list_of_tensor:
        return None
    dtypes = {each.dtype for each in list_of_tensor}
    if len(dtypes) != 1 or any(each.device.type != "npu" for each in list_of_tensor):
        raise RuntimeError(f"expected tensors of one type on an npu device, got {dtypes}")
    whole = list_of_tensor[0].new_zeros(sum(each.numel() for each in list_of_tensor))
    begin = 0
    with torch.no_grad():
        for each in list_of_tensor:
            part = whole[begin : begin + each.numel()].view(each.shape)
            if require_copy_value:
                part.copy_(each)
            each.data = part
            begin += each.numel()
    return whole


def get_part_combined_tensor(combined_tensor: torch.Tensor | None, index: int, size: int) -> Any:
    """Return `size` elements of the combined tensor, starting at `index`."""
    if not size or combined_tensor is None:
        return None
    if index + size > combined_tensor.numel():
        raise RuntimeError(
            f"index {index} + size {size} exceeds the {combined_tensor.numel()} elements of the "
            "combined tensor"
        )
    return combined_tensor[index : index + size]


def is_combined_tensor_valid(
    combined_tensor: torch.Tensor | None, list_of_tensor: Iterable[torch.Tensor]
) -> bool:
    """Return whether the tensors are still consecutive parts of the combined tensor."""
    place = None if combined_tensor is None else combined_tensor.data_ptr()
    for each in list_of_tensor:
        if place is None or each.data_ptr() != place:
            return False
        place += each.numel() * each.element_size()
    return True


def save_async(
    obj: Any, f: Any, pickle_module: Any = pickle, pickle_protocol: int = 2, **options: Any
) -> None:
    """Save an object with `torch.save`; on the hardware, this is asynchronous."""
    options.pop("model", None)
    torch.save(obj, f, pickle_module, pickle_protocol, **options)


def set_thread_affinity(core_range: Sequence[int] | None = None) -> None:
    """Do nothing: on the hardware, this binds threads to cores."""
    logger.info("set_thread_affinity(%s) has no effect on the simulated device", core_range)


def reset_thread_affinity() -> None:
    """Do nothing: on the hardware, this resets the binding of threads."""
