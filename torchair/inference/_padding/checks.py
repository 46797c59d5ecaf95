"""Is a padded call as good as one that is not? The captured graph is run both ways, and compared.

One look at one call is little: numbers may be zero, and a padding of one element among thousands hardly
shows. So a gear is checked again when a call is padded by more than twice what was compared before, when
outputs were all zero, and from time to time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.core.torch_private.fake.fake_tensors import tree_flatten

AGAIN = 4  # times as many padded calls: when a gear is checked again
SECOND = 16  # the padded call of a gear that is checked after the first
FARTHER = 2  # times the padding that was checked: what is still believed
ODD = 1e4  # times an ordinary number: such as stand for minus infinity in masks
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}  # as a share of the largest ordinary number; of others:
CLOSE_ENOUGH = 3e-2
CLOSE_ON_CPU = 1e-4  # float32: no kernel rounds to fewer bits there


@dataclass
class Checks:
    """What was checked of the padded calls of one gear."""

    calls: int = 0
    next: int = SECOND
    padding: int = 0  # the most that was found right

    def is_due(self, padding: int) -> bool:
        """Is a call, padded by so much, to be compared?"""
        return not self.padding or padding > FARTHER * self.padding or self.calls + 1 >= self.next

    def passed(self, padding: int) -> None:
        self.padding = max(self.padding, padding)
        if self.calls + 1 >= self.next:
            self.next *= AGAIN


def arguments_of(bound: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    """By name; also those that the model takes as any others."""
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        else:
            yield name, value


def is_finite(bound: inspect.BoundArguments, pads: Mapping[str, Any]) -> bool:
    """Are all numbers of a call finite, or those that fill up the padding? Zeros of a mask remove only finite
    numbers.
    """
    for name, value in arguments_of(bound):
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            is_known = value.isfinite() | (value == pads[name]) if name in pads else value.isfinite()
            if not bool(is_known.all()):
                return False
    return True


def variants(
    args: Sequence[Any], places: Collection[int], others: Collection[int], indexes: bool
) -> Iterator[list[Any]]:
    """Return the inputs of a graph as they are, and with other numbers in those that are padded: negative,
    positive, large and repeated ones, zeros, another order. Whole numbers that may be places in a tensor, and
    zeros and ones next to other inputs (masks), are those that came, in another order. The same again with
    other numbers in the other arguments of the call: they may decide whether the padding is read.
    """
    for changed in (places, {*places, *others}) if others else (places,):
        for change in CHANGES:
            yield [
                _changed(arg, change, _may_be_any(arg, len(places), indexes)) if at in changed else arg
                for at, arg in enumerate(args)
            ]


def _may_be_any(tensor: torch.Tensor, count: int, indexes: bool) -> bool:
    if tensor.dtype is torch.bool or (indexes and not (tensor.is_floating_point() or tensor.is_complex())):
        return False
    return count == 1 or not bool(((tensor == 0) | (tensor == 1)).all())


def _changed(tensor: torch.Tensor, change: Change, is_free: bool) -> torch.Tensor:
    number, order = change
    made = tensor.detach()
    made = made if order is None else order(made)
    return number(made).to(tensor.dtype) if number is not None and is_free else made


Change = tuple[Callable[[torch.Tensor], torch.Tensor] | None, Callable[[torch.Tensor], torch.Tensor] | None]
"""What is made of numbers, if they may be any; and of their order."""


def _reversed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flip(list(range(tensor.dim())))


def _first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten()[:1].expand(tensor.numel()).reshape(tensor.shape).clone()


def _last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten()[-1:].expand(tensor.numel()).reshape(tensor.shape).clone()


CHANGES: tuple[Change, ...] = (
    (None, None),
    (torch.neg, None),
    (None, _reversed),
    (lambda x: -x.abs() - 1, None),
    (lambda x: x.abs() + 1, None),
    (lambda x: x * 100, _reversed),
    (torch.zeros_like, None),
    (lambda x: x.abs() * 100 + 100, _first),
    (lambda x: -x.abs() * 100 - 100, _last),
)


def tells(outputs: Any) -> bool:
    """Are there numbers to see a difference in? All outputs may be zero, or none a number."""
    tensors = [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, torch.Tensor) and leaf.numel()]
    numbers = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    return any(bool((tensor.isfinite() & (tensor != 0)).any()) for tensor in numbers) if numbers else True


def difference(expected: Any, found: Any) -> str | None:
    """What differs between the outputs of two calls, beyond what other kernels make."""
    (theirs, spec), (ours, other) = tree_flatten(expected), tree_flatten(found)
    if spec != other:
        return "there would be other outputs"
    for place, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or a != b:
                return f"output {place} would be {b!r} and not {a!r}"
        elif a.shape != b.shape:
            return f"output {place} would have the shape {tuple(b.shape)} and not {tuple(a.shape)}"
        elif a.numel() and not _are_close((a, b)):
            return f"output {place} would have other numbers"
    return None


def _are_close(pair: Sequence[torch.Tensor]) -> bool:
    a, b = pair
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    limit = CLOSE.get(a.dtype, CLOSE_ENOUGH)
    if a.device.type == "cpu" and a.dtype is torch.float32:
        limit = CLOSE_ON_CPU
    wide = [x.to(torch.complex128 if x.is_complex() else torch.float64) for x in (a, b)]
    return torch.allclose(*wide, rtol=limit, atol=limit * _ordinary(wide[0]), equal_nan=True)


def _ordinary(numbers: torch.Tensor) -> float:
    """The largest, but for those that stand for something else (minus infinity, the least number)."""
    sizes = numbers.abs().flatten()
    sizes = sizes[sizes.isfinite() & (sizes > 0)]
    if not sizes.numel():
        return 0.0
    return float(sizes[sizes <= ODD * sizes.median()].max())
