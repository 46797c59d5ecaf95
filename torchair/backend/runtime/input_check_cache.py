"""Calls like the one before: what was checked then holds, and only the likeness is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.capture import Runner

TENSORS = (torch.Tensor, torch.nn.Parameter)
SIMPLE = (bool, int, str, type(None))
"""Types whose equal values are the same value."""


@dataclass(frozen=True)
class LastCallCheck:
    """The form of a call that was served, and who served it."""

    runner: Runner
    specs: tuple[Any, ...]
    """Of each argument."""
    names: tuple[str, ...]
    """Of the last of them."""
    inputs: tuple[Any, ...]
    """What the graph is given."""
    arguments: tuple[tuple[int, int], ...]
    """Which of the inputs is which argument."""

    @staticmethod
    def of(
        call: tuple[Sequence[Any], Mapping[str, Any]],
        given: Sequence[Any],
        kept: Sequence[torch.Tensor],
        runner: Runner,
    ) -> LastCallCheck | None:
        """Of a call that was served by the runner with what is `given`, of which some is `kept` for the next;
        None where more than a look at each argument would be needed.
        """
        args, kwargs = call
        arguments = (*args, *kwargs.values())
        specs = tuple(map(_spec, arguments))
        tensors = [place for place, argument in enumerate(arguments) if type(argument) in TENSORS]
        at = {id(arguments[place]): place for place in tensors}
        here = {*at, *map(id, kept)}
        is_made_ready = any(isinstance(value, torch.Tensor) and id(value) not in here for value in given)
        if None in specs or len(at) < len(tensors) or is_made_ready:
            return None
        which = tuple((place, at[id(value)]) for place, value in enumerate(given) if id(value) in at)
        inputs = tuple(None if id(value) in at else value for value in given)
        return LastCallCheck(runner, specs, tuple(kwargs), inputs, which)

    def inputs_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """What the graph is given in this call, if it is like the one before."""
        arguments = (*args, *kwargs.values()) if kwargs else args
        if tuple(kwargs) != self.names or tuple(map(_spec, arguments)) != self.specs:
            return None
        inputs = list(self.inputs)
        for place, which in self.arguments:
            inputs[place] = arguments[which]
        return inputs


def _spec(value: Any) -> tuple[Any, ...] | None:
    """What the checks of a call depend on; None where that is more than this."""
    kind = type(value)
    if kind in TENSORS:
        is_ready = value.is_contiguous() and not value.is_conj() and not value.is_neg()
        return (value.dtype, value.device, value.shape) if is_ready else None
    return (kind, value) if kind in SIMPLE else None
