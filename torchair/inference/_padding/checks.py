"""Check that padding changes no result: run the captured graph with and without padding, and compare.

A single call proves little: values may be zero, and one padded element among thousands is hardly visible. So
a gear is checked again if a call has more than twice the padding that was compared before, if all outputs
were zero, and from time to time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.core.torch_private.fake.fake_tensors import tree_flatten

AGAIN = 4  # factor between the numbers of padded calls after which a gear is checked again
SECOND = 16  # number of the padded call at which a gear is checked for the second time
FARTHER = 2  # multiple of the checked padding that is accepted without another check
ODD = 1e4  # multiple of the median above which a value is a sentinel, as minus infinity in masks
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}  # tolerance as a share of the largest ordinary value
CLOSE_ENOUGH = 3e-2  # tolerance of other dtypes
CLOSE_ON_CPU = 1e-4  # tolerance of float32 on CPUs, where no kernel uses a lower precision


@dataclass
class Checks:
    """The state of the checks of one gear."""

    calls: int = 0
    next: int = SECOND
    padding: int = 0  # the largest padding that passed a check

    def is_due(self, padding: int) -> bool:
        """Whether a call with this padding must be checked."""
        return not self.padding or padding > FARTHER * self.padding or self.calls + 1 >= self.next

    def passed(self, padding: int) -> None:
        self.padding = max(self.padding, padding)
        if self.calls + 1 >= self.next:
            self.next *= AGAIN


def arguments_of(bound: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    """Yield the arguments by name, including those in `**kwargs`."""
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        else:
            yield name, value


def is_finite(bound: inspect.BoundArguments, pads: Mapping[str, Any]) -> bool:
    """Whether all values of a call are finite or equal to the padding value.

    Zeros of a mask remove only finite values.
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
    """Yield the inputs of a graph, unchanged and with other values in the padded inputs.

    The values are negative, positive, large, repeated, zero, or in another order. Integers that may be
    indices, and inputs of zeros and ones (masks) among several inputs, are only reordered. All of this is
    repeated with other values in the other arguments, which may decide whether the padding is read.
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
"""A change of values, for inputs with arbitrary values, and a change of their order."""


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
    """Whether outputs can show a difference: some floating-point value is finite and not zero."""
    tensors = [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, torch.Tensor) and leaf.numel()]
    numbers = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    return any(bool((tensor.isfinite() & (tensor != 0)).any()) for tensor in numbers) if numbers else True


def difference(expected: Any, found: Any) -> str | None:
    """Describe the first difference of outputs that exceeds the tolerance; None if there is none."""
    (theirs, spec), (ours, other) = tree_flatten(expected), tree_flatten(found)
    if spec != other:
        return "the structure of the outputs changes"
    for index, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or a != b:
                return f"output {index} changes from {a!r} to {b!r}"
        elif a.shape != b.shape:
            return f"the shape of output {index} changes from {tuple(a.shape)} to {tuple(b.shape)}"
        elif a.numel() and not _are_close((a, b)):
            return f"the values of output {index} change"
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
    """Return the largest magnitude, without sentinels (minus infinity, the smallest float)."""
    sizes = numbers.abs().flatten()
    sizes = sizes[sizes.isfinite() & (sizes > 0)]
    if not sizes.numel():
        return 0.0
    return float(sizes[sizes <= ODD * sizes.median()].max())
