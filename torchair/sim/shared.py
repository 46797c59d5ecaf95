"""Tensors of the simulated device as tensors of the device behind it, on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchair.sim.load import shim


class _Owner:
    """Keeps a tensor while others use its memory. Both of numpy's and CUDA's ways to show memory are this one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._tensor = tensor
        self.nbytes = storage.nbytes() // tensor.itemsize * tensor.itemsize
        memory = {"data": (storage.data_ptr(), False), "shape": (self.nbytes,), "typestr": "|u1", "version": 3}
        setattr(self, "__cuda_array_interface__" if shim().setup()[1] == "cuda" else "__array_interface__", memory)


def shown(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one of the backing device, which keeps the memory; one of another device as it is."""
    if tensor.device.type != "npu":
        return tensor
    backing = shim().setup()[1]
    owner = _Owner(tensor)
    if owner.nbytes == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=backing)
    flat: Any = torch.from_numpy(np.asarray(owner)) if backing == "cpu" else torch.as_tensor(owner, device="cuda")
    return flat.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
