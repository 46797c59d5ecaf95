"""Symbolic numbers: type checks, hints, and their values in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from torchair.core.sym_expr import SymExpr


def is_symbol(value: object) -> TypeGuard[torch.SymInt | torch.SymFloat | torch.SymBool]:
    """Return whether the value is a SymInt, SymFloat or SymBool (it may still be a constant)."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def has_symbols(values: Sequence[Any]) -> bool:
    """Return whether one of the values is a symbol, or a tensor with a symbolic size."""
    return any(map(is_symbol, (size for value in values for size in (value, *getattr(value, "shape", ())))))


def hint(number: Any) -> int:
    """Return an example number for a symbol without installing a guard; 2 for a data-dependent symbol."""
    if not is_symbol(number):
        return int(number)
    return int(number.node.hint) if number.node.has_hint() else 2


def equal(a: Any, b: Any) -> bool:
    """Return whether two numbers are equal for all values of the symbols. Installs no guard."""
    if not is_symbol(a) and not is_symbol(b):
        return a == b
    return _expression(a) == _expression(b)


def _expression(number: Any) -> Any:
    if isinstance(number, SymExpr):
        return number.expr
    return number.node.expr if is_symbol(number) else number


def unbacked_in(value: Any) -> set[Any]:
    """Return the data-dependent symbols in a value, which may be nested."""
    if isinstance(value, list | tuple):
        return {symbol for item in value for symbol in unbacked_in(item)}
    return set(free_unbacked_symbols(value)) if is_symbol(value) or isinstance(value, torch.Tensor) else set()


class Binding:
    """Where the values of symbols can be read from the arguments of a call: a number, or a size, stride or
    offset of a tensor that is just this symbol. It can be serialized (`core/storage/serialization.py`).
    """

    def __init__(self, fakes: Sequence[Any]) -> None:
        self._places: dict[Any, tuple[int, str, int]] = {}
        for index, fake in enumerate(fakes):
            self._add(fake, index, "number")
        for index, fake in enumerate(fakes):
            if isinstance(fake, torch.Tensor) and fake.layout is torch.strided:
                for dim, size in enumerate(fake.shape):
                    self._add(size, index, "size", dim)
                for dim, step in enumerate(fake.stride()):
                    self._add(step, index, "stride", dim)
                self._add(fake.storage_offset(), index, "offset")

    def _add(self, number: Any, index: int, what: str, dim: int = 0) -> None:
        if is_symbol(number) and number.node.expr.is_symbol:
            self._places.setdefault(number.node.expr, (index, what, dim))

    def reader(self, args: Sequence[Any]) -> Reader:
        """Return the values of the graph's numbers in this call."""
        return Reader(
            {symbol: _READ[what](args[index], dim) for symbol, (index, what, dim) in self._places.items()}
        )


_READ: dict[str, Callable[[Any, int], Any]] = {
    "number": lambda argument, dim: argument,
    "size": lambda argument, dim: argument.size(dim),
    "stride": lambda argument, dim: argument.stride(dim),
    "offset": lambda argument, dim: argument.storage_offset(),
}


class Reader:
    """Maps a number of the graph to its value in one call. Raises `Unreadable` if the value is unknown."""

    def __init__(self, values: dict[Any, int]) -> None:
        self.values = values

    def __call__(self, number: Any) -> Any:
        if not is_symbol(number) and not isinstance(number, SymExpr):
            return number
        found = _expression(number).xreplace(self.values)
        if isinstance(found, int | float):
            return found
        if not found.is_number:
            raise Unreadable(f"{_expression(number)} depends on data")
        is_float = isinstance(number, torch.SymFloat) or (isinstance(number, SymExpr) and number.is_float)
        return float(found) if is_float else int(found)

    def knowing(self, sizes: Sequence[Any], values: Sequence[int]) -> Reader:
        """Return a reader that also knows these data-dependent sizes."""
        known = {
            expression: value
            for size, value in zip(sizes, values, strict=True)
            if not isinstance(size, int) and (expression := _expression(size)).is_symbol
        }
        return Reader(known | self.values) if known else self


class Unreadable(ValueError):
    """A number that depends on data."""
