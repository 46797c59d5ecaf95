"""Is a padded call as good as one that is not? Both are run, and compared.

One look at one call is little: numbers may be zero, and a padding of one element among thousands hardly
shows. So a gear is checked again when a call is padded by more than twice what was compared before, when
outputs were all zero, and from time to time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchair.compare.scene import random_state, set_random_state
from torchair.core.torch_private.fake import tree_flatten

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


class Writes:
    """Notices what a call writes of its arguments and of the state of the model."""

    def __init__(self, model: Callable[..., Any], bound: inspect.BoundArguments) -> None:
        given = [value for _, value in arguments_of(bound)]
        self._state = [value for value in [*given, *_state_of(model)] if isinstance(value, torch.Tensor)]
        self._before = [_version(tensor) for tensor in self._state]

    def happened(self) -> bool:
        """Was something written since?"""
        return any(
            not torch.equal(_bytes(tensor), before)
            if isinstance(before, torch.Tensor)
            else tensor._version != before
            for tensor, before in zip(self._state, self._before, strict=True)
        )


def _version(tensor: torch.Tensor) -> int | torch.Tensor:
    """Tensors made in inference mode have none: how they are."""
    return _bytes(tensor) if tensor.is_inference() else tensor._version


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A copy; two that are not a number are the same here."""
    return tensor.detach().flatten().clone().view(torch.uint8)


def _state_of(model: Callable[..., Any]) -> Iterator[Any]:
    """Of a module, or the module that a method is of: what it holds, and plain attributes as well. Parameters
    of inference mode are taken to stay: they are too many to be copied.
    """
    owner = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    if not isinstance(owner, nn.Module):
        return
    yield from owner.buffers()
    yield from (each for each in owner.parameters() if not each.is_inference())
    for module in owner.modules():
        yield from vars(module).values()


@contextmanager
def drawing_again(device: torch.device) -> Iterator[Callable[[], None]]:
    """Inside, calling what it gives lets random numbers begin anew; afterwards they were drawn once."""
    begin, after = random_state(device), None

    def again() -> None:
        nonlocal after
        after = random_state(device)
        set_random_state(begin)

    try:
        yield again
    finally:
        if after is not None:
            set_random_state(after)


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
