"""What a caller sees of the memory behind tensors: strides, who shares a storage with whom, how far apart."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from torchair.fxgraph.symbols import hint


def strides(tensor: torch.Tensor) -> list[int]:
    """Those that say something: of dims of more than one element, of tensors with elements."""
    sizes, steps = (list(map(hint, numbers)) for numbers in (tensor.shape, tensor.stride()))
    return [] if 0 in sizes else [step for n, step in zip(sizes, steps, strict=True) if n > 1]


def distance(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """Bytes from one tensor to another, None where they do not share a storage. Tensors without elements
    share nothing that anybody could see.
    """
    if not a.numel() or not b.numel() or a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return None
    return a.data_ptr() - b.data_ptr()


def copies(args: Sequence[Any]) -> list[Any]:
    """Copies of arguments, strides, offsets and shared storages included."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if all(tensor.layout is torch.strided for tensor in tensors):
        return copy.deepcopy(list(args))
    return [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
