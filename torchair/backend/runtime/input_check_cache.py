"""Skip the input checks of a call whose arguments have the same metadata as those of the previous call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.capture import Runner

TENSORS = (torch.Tensor, torch.nn.Parameter)
SIMPLE = (bool, int, str, type(None))
"""Types whose values are compared with `==`."""


@dataclass(frozen=True)
class LastCallCheck:
    """The metadata of a previous call, and the runner that served it."""

    runner: Runner
    specs: tuple[Any, ...]
    """The metadata of each argument."""
    names: tuple[str, ...]
    """The names of the keyword arguments, which come last."""
    inputs: tuple[Any, ...]
    """The inputs of the graph, with None for those that are arguments."""
    arguments: tuple[tuple[int, int], ...]
    """Pairs of an input's index and the index of the argument that it is."""

    @staticmethod
    def of(
        call: tuple[Sequence[Any], Mapping[str, Any]],
        given: Sequence[Any],
        kept: Sequence[torch.Tensor],
        runner: Runner,
    ) -> LastCallCheck | None:
        """Describe a call that `runner` served with the inputs `given`, of which `kept` outlive the call.

        Return None if the metadata of each argument cannot decide whether a later call is equivalent.
        """
        args, kwargs = call
        arguments = (*args, *kwargs.values())
        specs = tuple(map(_spec, arguments))
        tensors = [index for index, argument in enumerate(arguments) if type(argument) in TENSORS]
        index_of = {id(arguments[index]): index for index in tensors}
        known = {*index_of, *map(id, kept)}
        has_temporary = any(isinstance(value, torch.Tensor) and id(value) not in known for value in given)
        if None in specs or len(index_of) < len(tensors) or has_temporary:
            return None
        pairs = tuple(
            (index, index_of[id(value)]) for index, value in enumerate(given) if id(value) in index_of
        )
        inputs = tuple(None if id(value) in index_of else value for value in given)
        return LastCallCheck(runner, specs, tuple(kwargs), inputs, pairs)

    def inputs_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """Return the inputs of the graph for this call, or None if it differs from the previous one."""
        arguments = (*args, *kwargs.values()) if kwargs else args
        if tuple(kwargs) != self.names or tuple(map(_spec, arguments)) != self.specs:
            return None
        inputs = list(self.inputs)
        for input_index, argument_index in self.arguments:
            inputs[input_index] = arguments[argument_index]
        return inputs


def _spec(value: Any) -> tuple[Any, ...] | None:
    """Return the metadata that the checks of a call depend on; None for a value that needs the full check."""
    kind = type(value)
    if kind in TENSORS:
        is_ready = value.is_contiguous() and not value.is_conj() and not value.is_neg()
        return (value.dtype, value.device, value.shape) if is_ready else None
    return (kind, value) if kind in SIMPLE else None
