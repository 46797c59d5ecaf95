"""Crop the dimensions of outputs that were padded.

They are known from the symbolic shapes of the captured graph (`captured_graph.py`) or declared by the user,
never guessed from equal sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.core.torch_private.fake.fake_tensors import tree_flatten, tree_unflatten

Declared = Mapping[str | int, int | Sequence[int]]
Known = torch.Tensor | bool | int | float | complex | str | None
"""The types that a container of outputs may contain."""


class Unknown(ValueError):
    """It is unknown how to crop the outputs, so calls of this model must not be padded."""


@dataclass(frozen=True)
class Crops:
    """The dimensions to crop of each output, in pytree order; None if outputs remain padded."""

    dims: tuple[tuple[int, ...], ...] | None

    def cut(self, outputs: Any, size: int) -> Any:
        """Crop the outputs to a call of this size."""
        if self.dims is None:
            return outputs
        leaves, spec = tree_flatten(outputs)
        if len(leaves) != len(self.dims):
            raise Unknown(f"the model returned {len(leaves)} outputs instead of {len(self.dims)}")
        cut = [_narrowed(leaf, dims, size) for leaf, dims in zip(leaves, self.dims, strict=True)]
        return tree_unflatten(cut, spec)


def _narrowed(leaf: Any, dims: Sequence[int], size: int) -> Any:
    if not dims:
        return leaf
    for dim in dims:
        leaf = leaf.narrow(dim, 0, size)
    # Copy, with eager's order of strides, so that the padded tensor can be freed.
    return leaf.clone()


def declared_crops(outputs: Any, declared: Declared) -> Crops:
    """Return the declared crops, by key or index in the outermost container (0 for a single tensor)."""
    known: dict[Any, Any] = {0: outputs}
    if isinstance(outputs, Mapping):
        known = dict(outputs)
    elif isinstance(outputs, list | tuple):
        known = dict(enumerate(outputs))
    if missing := [key for key in declared if key not in known]:
        raise Unknown(
            f"crop has an output {missing[0]!r} that the model does not return; it returns {list(known)}"
        )
    found: list[tuple[int, ...]] = []
    for key, value in known.items():
        dims = declared.get(key, ())
        wanted = (dims,) if isinstance(dims, int) else tuple(dims)
        for leaf in tree_flatten(value)[0]:
            if not isinstance(leaf, Known):
                kind = type(leaf).__name__
                raise Unknown(f"output {key!r} is or contains a {kind}, which cannot be cropped")
            found.append(_checked(leaf, wanted, key) if isinstance(leaf, torch.Tensor) else ())
    return Crops(tuple(found))


def _checked(leaf: torch.Tensor, dims: tuple[int, ...], key: Any) -> tuple[int, ...]:
    if not all(-leaf.dim() <= dim < leaf.dim() for dim in dims):
        raise Unknown(f"output {key!r} has {leaf.dim()} dimensions, but crop has {dims}")
    return tuple(dim % leaf.dim() for dim in dims)
