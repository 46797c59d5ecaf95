"""Provide `torch.npu.FloatTensor` and similar: the old names of tensor types."""

from __future__ import annotations

from typing import Any

import torch

_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class OldTensor(type):
    """Metaclass: tensors of the device with one dtype are instances; a call creates a tensor."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == "npu"
            and instance.dtype == cls.dtype
        )

    def __call__(cls, *args: Any) -> torch.Tensor:
        if len(args) == 1 and not isinstance(args[0], int | torch.Size):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="npu")
        return torch.empty(*args, dtype=cls.dtype, device="npu")


def _made(name: str) -> OldTensor:
    """Create such a class with its qualified name, because `Tensor.type` reads it."""
    text = f"Tensors of {_TYPES[name]} on the device."
    return OldTensor(f"torch.npu.{name}", (), {"dtype": _TYPES[name], "__doc__": text})


BFloat16Tensor = _made("BFloat16Tensor")
BoolTensor = _made("BoolTensor")
ByteTensor = _made("ByteTensor")
CharTensor = _made("CharTensor")
DoubleTensor = _made("DoubleTensor")
FloatTensor = _made("FloatTensor")
HalfTensor = _made("HalfTensor")
IntTensor = _made("IntTensor")
LongTensor = _made("LongTensor")
ShortTensor = _made("ShortTensor")
