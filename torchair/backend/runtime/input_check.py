"""What a compiled graph that nobody guards may be called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchair.core.errors import BadCall
from torchair.fxgraph.placeholders import placeholders

NEXT = "call it with inputs like its examples, or through torch.compile, whose guards compile again"
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


class InputChecker:
    """The flat inputs as the examples were: how many, and of each tensor dtype, device and fixed sizes. Sizes
    that are one symbol are equal in a call. Strides may be others, save where elements are one element.
    """

    def __init__(self, gm: fx.GraphModule, examples: Sequence[Any]) -> None:
        self._names = [node.name for node in placeholders(gm)]
        self._known = [_facts(example) for example in examples]

    def check(self, args: Sequence[Any]) -> None:
        """Refuse a call that the graph would answer with an unreadable error, or wrongly."""
        if len(args) != len(self._known):
            raise BadCall(
                "a compiled graph was called with another number of inputs",
                got=f"{len(args)} instead of {len(self._known)} ({', '.join(self._names)})",
                next=NEXT,
            )
        symbols: dict[str, int] = {}
        for name, facts, arg in zip(self._names, self._known, args, strict=True):
            if facts is not None and (got := _difference(facts, arg, symbols)):
                raise BadCall(f"input {name} is not as the graph was compiled for", got=got, next=NEXT)


Facts = tuple[torch.dtype, str, tuple[int | str, ...], tuple[int, ...]]
"""Of a tensor: dtype, type of device, sizes (a symbol by its name), dimensions that are one element."""


def _facts(example: Any) -> Facts | type | None:
    if isinstance(example, torch.Tensor):
        sizes = tuple(size if isinstance(size, int) else str(size) for size in example.shape)
        return example.dtype, example.device.type, sizes, _repeated(example)
    return float if isinstance(example, _NUMBERS) else None


def _repeated(tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.layout is not torch.strided:
        return ()
    steps = tensor.stride()
    return tuple(dim for dim, step in enumerate(steps) if isinstance(step, int) and step == 0)


def _difference(facts: Facts | type, arg: Any, symbols: dict[str, int]) -> str:
    """What is wrong with an input, or nothing."""
    if isinstance(facts, type):
        return "" if isinstance(arg, _NUMBERS) else f"{type(arg).__name__} instead of a number"
    if not isinstance(arg, torch.Tensor):
        return f"{type(arg).__name__} instead of a tensor"
    dtype, device, sizes, repeated = facts
    if arg.dtype is not dtype:
        return f"{arg.dtype} instead of {dtype}"
    if arg.device.type != device:
        return f"a tensor on {arg.device} instead of {device}"
    shape = arg.shape
    if tuple(shape) == sizes and not repeated:
        return ""
    is_shaped = len(shape) == len(sizes) and all(
        want == size if isinstance(want, int) else symbols.setdefault(want, size) == size
        for want, size in zip(sizes, shape, strict=True)
    )
    if not is_shaped:
        wanted = ", ".join(str(symbols.get(str(size), size)) for size in sizes)
        return f"sizes {tuple(shape)} instead of ({wanted})"
    spread = [dim for dim in repeated if shape[dim] > 1 and arg.stride(dim) != 0]
    return f"dimension {spread[0]} has elements of its own; it was expanded" if spread else ""
