"""Check the inputs of compiled graphs that have no Dynamo guards."""

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
    """Check flat inputs against the examples: their number, and each tensor's dtype, device and fixed sizes.

    Sizes that share a symbol must be equal within a call. Strides may differ, except that an expanded
    dimension (stride 0) must stay expanded.
    """

    def __init__(self, gm: fx.GraphModule, examples: Sequence[Any]) -> None:
        self._names = [node.name for node in placeholders(gm)]
        self._known = [_facts(example) for example in examples]

    def check(self, args: Sequence[Any]) -> None:
        """Raise `BadCall` if the graph would fail with an obscure error or compute wrong values."""
        if len(args) != len(self._known):
            raise BadCall(
                f"the compiled graph expects {len(self._known)} inputs ({', '.join(self._names)})",
                got=str(len(args)),
                next=NEXT,
            )
        symbols: dict[str, int] = {}
        for name, facts, arg in zip(self._names, self._known, args, strict=True):
            if facts is not None and (got := _difference(facts, arg, symbols)):
                raise BadCall(f"input {name} does not match the compiled graph", got=got, next=NEXT)


Facts = tuple[torch.dtype, str, tuple[int | str, ...], tuple[int, ...]]
"""Facts of a tensor: dtype, device type, sizes (a symbol by its name), expanded dimensions (stride 0)."""


def _facts(example: Any) -> Facts | type | None:
    if isinstance(example, torch.Tensor):
        sizes = tuple(size if isinstance(size, int) else str(size) for size in example.shape)
        return example.dtype, example.device.type, sizes, _expanded_dims(example)
    return float if isinstance(example, _NUMBERS) else None


def _expanded_dims(tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.layout is not torch.strided:
        return ()
    strides = tensor.stride()
    return tuple(dim for dim, stride in enumerate(strides) if isinstance(stride, int) and stride == 0)


def _difference(facts: Facts | type, arg: Any, symbols: dict[str, int]) -> str:
    """Describe how an input differs from its example; an empty text if it matches."""
    if isinstance(facts, type):
        return "" if isinstance(arg, _NUMBERS) else f"{type(arg).__name__} instead of a number"
    if not isinstance(arg, torch.Tensor):
        return f"{type(arg).__name__} instead of a tensor"
    dtype, device, sizes, expanded = facts
    if arg.dtype is not dtype:
        return f"{arg.dtype} instead of {dtype}"
    if arg.device.type != device:
        return f"a tensor on {arg.device} instead of {device}"
    shape = arg.shape
    if tuple(shape) == sizes and not expanded:
        return ""
    is_shaped = len(shape) == len(sizes) and all(
        want == size if isinstance(want, int) else symbols.setdefault(want, size) == size
        for want, size in zip(sizes, shape, strict=True)
    )
    if not is_shaped:
        expected = ", ".join(str(symbols.get(str(size), size)) for size in sizes)
        return f"sizes {tuple(shape)} instead of ({expected})"
    changed = [dim for dim in expanded if shape[dim] > 1 and arg.stride(dim) != 0]
    return f"dimension {changed[0]} is not expanded (stride 0), but it was in the example" if changed else ""
