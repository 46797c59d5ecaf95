"""Which elements of a storage tensors use: whether they overlap, and whether they leave gaps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from torchair.core.torch_private.compilers.inductor import reinplace_module, remembered_writes
from torchair.core.torch_private.fake.fake_tensors import statically_known_true

CAREFUL = "careful writes 2"
"""Part of the cache keys: graphs compiled without these writes differ."""


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill one block of memory without overlap, so that `clone` keeps the
    strides.
    """
    return torch.ops.aten.is_non_overlapping_and_dense(tensor)


@contextlib.contextmanager
def overlap_safe_writes() -> Iterator[None]:
    """Make Inductor write in place only if no later op reads the old value, and read the new value after the
    write. Inductor's own test treats some rows of a matrix as separate from the matrix (torch 2.13).
    """
    tag = f"{torch.compiler.config.cache_key_tag} {CAREFUL}"
    with (
        remembered_writes(),
        mock.patch.object(reinplace_module(), "compute_overlapping_tensors", _overlapping, create=True),
        torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
    ):
        yield


def _overlapping(tensors: Sequence[torch.Tensor], symbolic: bool = True) -> set[int]:
    """Return which of these tensors on one storage may share elements with another of them."""
    spans = [_span(tensor) for tensor in tensors]
    return {
        place
        for place, (start, end) in enumerate(spans)
        for other, (other_start, other_end) in enumerate(spans)
        if place != other
        and not (statically_known_true(end <= other_start) or statically_known_true(other_end <= start))
    }


def _span(tensor: torch.Tensor) -> tuple[Any, Any]:
    """Return the offset of the first element in the storage, and the end of the last one."""
    first = tensor.storage_offset()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return first, first + 1 + sum((n - 1) * step for n, step in pairs)
