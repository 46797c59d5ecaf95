"""Is a result the one eager gives? Asked before anything is timed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def leaves(result: Any) -> list[Tensor]:
    """The tensors of a model's result, in order: a tensor, a tuple or a `ModelOutput`."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        return [leaf for value in result.values() for leaf in leaves(value)]
    if isinstance(result, (tuple, list)):
        return [leaf for value in result for leaf in leaves(value)]
    return []


def snapshot(result: Any) -> list[Tensor]:
    """Copies of the tensors, so that a later call cannot change what is compared."""
    return [leaf.clone() for leaf in leaves(result)]


def why_unequal(
    got: list[Tensor], want: list[Tensor], tolerance: dict[str, float] | None = None
) -> str | None:
    """The first difference in words, or nothing where all are close."""
    if len(got) != len(want):
        return f"{len(got)} tensors, eager gives {len(want)}"
    try:
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs, **(tolerance or {}))
    except AssertionError as error:
        return " ".join(str(error).split())
    return None
