"""Symbols of sizes as data, for a compile in another process."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torchair.core.number import Number


@dataclass(frozen=True)
class Seen:
    """One symbol: the number that it stood for when it was made, and its bounds."""

    symbol: sympy.Symbol
    example: int
    least: int | None
    most: int | None


@dataclass(frozen=True)
class Symbols:
    """The symbols in some numbers, and what is known of them."""

    seen: tuple[Seen, ...] = ()
    facts: tuple[Any, ...] = ()

    @staticmethod
    def of(numbers: Iterable[torch.SymInt]) -> Symbols:
        """Of these; all of one environment. LookupError where only the data decides one."""
        numbers = list(numbers)
        if not numbers:
            return Symbols()
        env = numbers[0].node.shape_env
        hints = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
        symbols = sorted({s for n in numbers for s in n.node.expr.free_symbols}, key=str)
        seen: list[Seen] = []
        for symbol in symbols:
            bounds = env.var_to_range[symbol]
            seen.append(Seen(symbol, int(hints[symbol]), _finite(bounds.lower), _finite(bounds.upper)))
        facts = tuple(guard.expr for guard in env.guards if guard.expr.free_symbols <= set(symbols))
        return Symbols(tuple(seen), facts)

    def lines(self) -> list[str]:
        """As text, without the numbers that they stood for."""
        return [*(f"{s.symbol} {s.least} {s.most}" for s in self.seen), *map(str, self.facts)]

    def world(self) -> World:
        """An environment in which they are known again."""
        return World(self)


def taken_for_granted(numbers: Sequence[torch.SymInt]) -> Callable[[], tuple[Any, ...]]:
    """A function for what the environment of these numbers has come to take for granted since now."""
    if not numbers:
        return tuple
    env = numbers[0].node.shape_env
    known = len(env.guards)
    return lambda: tuple(guard.expr for guard in env.guards[known:])


def guarded(numbers: Sequence[torch.SymInt], conditions: Sequence[Any]) -> bool:
    """Do these hold of the numbers? If so, they are taken for granted from now on."""
    if not conditions:
        return True
    if not numbers:
        return False
    env = numbers[0].node.shape_env
    hints = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    if not all(condition.xreplace(hints) == sympy.true for condition in conditions):
        return False
    for condition in conditions:
        env.evaluate_expr(condition, hint=sympy.true)
    return True


class World:
    """An environment with the symbols of another."""

    def __init__(self, symbols: Symbols) -> None:
        self.env = ShapeEnv()
        self._there: dict[Any, Any] = {}
        for seen in symbols.seen:
            self._there[seen.symbol] = self._made(seen)
        for fact in symbols.facts:
            self.env.evaluate_expr(fact.xreplace(self._there), hint=sympy.true)
        self._known = len(self.env.guards)

    def _made(self, seen: Seen) -> Any:
        is_size = seen.least is not None and seen.least >= 2
        symbol = self.env.create_symbol(
            seen.example,
            source=ConstantSource(f"of_{seen.symbol}"),
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=None,
            positive=True if seen.symbol.is_positive else None,
            do_not_specialize_zero_one=not is_size,
        )
        number = self.env.create_symintnode(symbol, hint=seen.example)
        for bound, is_least in ((seen.least, True), (seen.most, False)):
            if bound is not None and not (is_least and is_size and bound == 2):
                assert number >= bound if is_least else number <= bound, "the example is within its bounds"
        return symbol

    def number(self, value: int | Number) -> int | torch.SymInt:
        """A number of the other environment in this one."""
        if not isinstance(value, Number):
            return value
        expr = value.expr.xreplace(self._there)
        hints = self.env.backed_var_to_val if hasattr(self.env, "backed_var_to_val") else self.env.var_to_val
        return self.env.create_symintnode(expr, hint=int(expr.xreplace(hints)))

    def conditions(self) -> tuple[Any, ...]:
        """What was taken for granted here since, in symbols of the other environment."""
        back = {here: there for there, here in self._there.items()}
        return tuple(guard.expr.xreplace(back) for guard in self.env.guards[self._known :])


def _finite(bound: Any) -> int | None:
    """int_oo and the largest int64 are no bounds."""
    return int(bound) if bound.is_Integer and abs(int(bound)) < 1 << 62 else None
