"""What a caller sees of the memory behind tensors: strides, who shares a storage with whom, how far apart."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

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


def is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


@dataclass(frozen=True)
class Seen:
    """What the caller sees of a call: its results, and the arguments after it."""

    results: Any
    args: list[Any]

    @property
    def values(self) -> list[Any]:
        """All of them in one list."""
        return tree_leaves((self.results, self.args))


def seen(run: Callable[[list[Any]], Any], args: Sequence[Any]) -> Seen:
    """A call on copies of the arguments."""
    given = copies(args)
    with torch.no_grad():
        return Seen(run(list(given)), given)


def other_strides(got: Any, wanted: Any, *, every_dim: bool = False) -> str:
    """How the strides of a tensor differ, in words; empty when they do not."""
    told = torch.Tensor.stride if every_dim else strides
    if not is_strided(wanted) or told(got) == told(wanted):
        return ""
    return f"strides {got.stride()} for {wanted.stride()} of {tuple(wanted.shape)}"


def other_memory(got: Seen, wanted: Seen, *, every_dim: bool = False) -> str:
    """How the memory of results and arguments differs: strides, who shares a storage with whom, where they
    begin in it. Where a result that is nobody's view begins in its storage is not promised.
    """
    ours, theirs = got.values, wanted.values
    places = [n for n, value in enumerate(theirs) if is_strided(value)]
    for n in places:
        if why := other_strides(ours[n], theirs[n], every_dim=every_dim):
            return f"value {n}: {why}"
    for a, b in itertools.combinations(places, 2):
        have, want = distance(ours[a], ours[b]), distance(theirs[a], theirs[b])
        if have != want:
            return f"values {a} and {b} of results and arguments: {have} bytes apart for {want}"
    return ""


def copies(args: Sequence[Any]) -> list[Any]:
    """Copies of arguments, strides, offsets and shared storages included."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if all(tensor.layout is torch.strided for tensor in tensors):
        return copy.deepcopy(list(args))
    return [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
