"""Strides of results. IR tensors are logically contiguous; what a graph returns has the strides FX
promised.
"""

from __future__ import annotations

from typing import Any

import torch

from torchair.core.torch_private import storage_id
from torchair.ge.host import is_symbol


def is_static(meta: torch.Tensor) -> bool:
    """No symbol in sizes, strides or offset; a sparse tensor has no strides to tell."""
    if meta.layout is not torch.strided:
        return False
    return not any(is_symbol(part) for part in (*meta.shape, *meta.stride(), meta.storage_offset()))


def memory_of(x: torch.Tensor) -> int:
    """Identity of the memory a tensor looks at; a sparse one has parts of its own."""
    return storage_id(x) if x.layout is torch.strided else id(x)


def hint(number: Any) -> int:
    """A number for a symbol, without asking (and so without installing a guard); 2 for a data-dependent
    one.
    """
    if not is_symbol(number):
        return int(number)
    return int(number.node.hint) if number.node.has_hint() else 2


def stride_order(meta: torch.Tensor) -> tuple[int, ...]:
    """The dims from the slowest to the fastest. Dims of size 1 and ties keep their place."""
    strides = [hint(step) for step in meta.stride()]
    sizes = [hint(size) for size in meta.shape]
    # A unit dim may have any stride: it follows its left neighbour, so it never forces a copy.
    for dim in range(len(strides)):
        if sizes[dim] == 1:
            strides[dim] = strides[dim - 1] if dim else max(strides, default=1)
    return tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))


def restride(x: torch.Tensor, promised: torch.Tensor) -> torch.Tensor:
    """`x` with the memory order of `promised`; itself when it has it already or when the order cannot be
    told.
    """
    if x.ndim != promised.ndim or x.layout is not torch.strided or has_overlap(promised):
        return x
    order = stride_order(promised)
    if stride_order(x) == order and is_dense(x) >= is_dense(promised):
        return x
    back = tuple(order.index(dim) for dim in range(len(order)))
    return x.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def has_overlap(meta: torch.Tensor) -> bool:
    """An expanded dim: several elements share one place."""
    return any(
        hint(step) == 0 and hint(size) > 1 for size, step in zip(meta.shape, meta.stride(), strict=True)
    )


def is_dense(meta: torch.Tensor) -> bool:
    """No holes between the elements."""
    if has_overlap(meta):
        return False
    expected = 1
    for dim in reversed(stride_order(meta)):
        size = hint(meta.shape[dim])
        if size == 0:
            return True
        if size != 1 and hint(meta.stride(dim)) != expected:
            return False
        expected *= size
    return True
