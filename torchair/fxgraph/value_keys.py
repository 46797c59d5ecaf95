"""Keys that are equal exactly if two values are the same. Memos, merged constants and capture keys use them.

Python's equality is not suitable: `True == 1 == 1.0` and `0.0 == -0.0`, though `1 / x` differs for the zeros;
a NaN differs from itself; and the text of an array is rounded. Keys here are equal exactly if no program can
distinguish the values.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch

from torchair.core.torch_private.fake.fake_tensors import without_modes
from torchair.fxgraph.symbols import is_symbol


def number_key(number: Any) -> Hashable:
    """Return type and bits of a number; for a symbol its expression (SymInts cannot be hashed)."""
    if is_symbol(number):
        return type(number).__name__, number.node.expr
    if isinstance(number, np.generic):
        return str(number.dtype), number.tobytes()
    if isinstance(number, float):
        return "float", struct.pack("<d", number)
    if isinstance(number, complex):
        return "complex", struct.pack("<dd", number.real, number.imag)
    return type(number).__name__, number


@without_modes
def constant_key(tensor: torch.Tensor) -> Hashable:
    """Return dtype, sizes and bytes of a tensor with known values."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.is_quantized:
        return "quantized", tensor.dtype, _scheme_key(plain), constant_key(plain.int_repr())
    data = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return tensor.dtype, tuple(tensor.shape), data


def _scheme_key(tensor: torch.Tensor) -> Hashable:
    if tensor.qscheme() == torch.per_tensor_affine:
        return number_key(tensor.q_scale()), tensor.q_zero_point()
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return tensor.q_per_channel_axis(), constant_key(scales), constant_key(zeros)


def value_key(value: Any) -> Hashable:
    """Return the key of an attribute or argument: numbers, constants, and lists and dictionaries of them."""
    if isinstance(value, torch.Tensor):
        return constant_key(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(value_key(item) for item in value)
    if isinstance(value, Mapping):
        return "dict", tuple((key, value_key(item)) for key, item in value.items())
    if isinstance(value, bool | int | float | complex) or is_symbol(value):
        return number_key(value)
    return type(value).__name__, value if isinstance(value, Hashable) else repr(value)


def tensor_key(value: torch.Tensor, *, strides: bool) -> Hashable:
    """Return the properties of a tensor that affect code generated for it. With `strides`, also strides,
    offset, and conj/neg bits.
    """
    key = (
        value.dtype,
        tuple(number_key(size) for size in value.shape),
        value.device,
        value.requires_grad,
        value.layout,
    )
    if not strides or value.layout is not torch.strided:
        return key
    steps = tuple(number_key(step) for step in value.stride())
    return (*key, steps, number_key(value.storage_offset()), value.is_conj(), value.is_neg())
