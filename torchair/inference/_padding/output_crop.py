"""Which dimensions of outputs have the size that inputs were padded in: known from the symbolic shapes of the
captured graph (`captured_graph.py`), or said by the user, never guessed from equal numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.core.torch_private.fake.fake_tensors import tree_flatten, tree_unflatten

Declared = Mapping[str | int, int | Sequence[int]]
Known = torch.Tensor | bool | int | float | complex | str | None
"""What a container of outputs may hold."""


class Unknown(ValueError):
    """Nobody can say how to crop the outputs: calls of this model must not be padded."""


@dataclass(frozen=True)
class Crops:
    """The dimensions of each output to crop, in the order torch takes containers apart in; None where outputs
    stay padded.
    """

    dims: tuple[tuple[int, ...], ...] | None

    def cut(self, outputs: Any, size: int) -> Any:
        """The outputs, as a call of this size gives them."""
        if self.dims is None:
            return outputs
        leaves, spec = tree_flatten(outputs)
        if len(leaves) != len(self.dims):
            raise Unknown(f"there are {len(leaves)} outputs, and {len(self.dims)} were expected")
        cut = [_narrowed(leaf, dims, size) for leaf, dims in zip(leaves, self.dims, strict=True)]
        return tree_unflatten(cut, spec)


def _narrowed(leaf: Any, dims: Sequence[int], size: int) -> Any:
    if not dims:
        return leaf
    for dim in dims:
        leaf = leaf.narrow(dim, 0, size)
    # As eager's, in the same order of strides: nobody sees that it was larger, and the larger one can go.
    return leaf.clone()


def declared_crops(outputs: Any, declared: Declared) -> Crops:
    """From what the user says: by key or place in the outermost container, 0 of a lone tensor."""
    known: dict[Any, Any] = {0: outputs}
    if isinstance(outputs, Mapping):
        known = dict(outputs)
    elif isinstance(outputs, list | tuple):
        known = dict(enumerate(outputs))
    if missing := [key for key in declared if key not in known]:
        raise Unknown(f"there is no output {missing[0]!r} to crop; there are {list(known)}")
    found: list[tuple[int, ...]] = []
    for key, value in known.items():
        dims = declared.get(key, ())
        wanted = (dims,) if isinstance(dims, int) else tuple(dims)
        for leaf in tree_flatten(value)[0]:
            if not isinstance(leaf, Known):
                kind = type(leaf).__name__
                raise Unknown(f"output {key!r} is or holds a {kind}, which nobody can look into")
            found.append(_checked(leaf, wanted, key) if isinstance(leaf, torch.Tensor) else ())
    return Crops(tuple(found))


def _checked(leaf: torch.Tensor, dims: tuple[int, ...], key: Any) -> tuple[int, ...]:
    if not all(-leaf.dim() <= dim < leaf.dim() for dim in dims):
        raise Unknown(f"output {key!r} has {leaf.dim()} dimensions, none of them {dims}")
    return tuple(dim % leaf.dim() for dim in dims)
