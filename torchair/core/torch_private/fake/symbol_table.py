"""Symbols of sizes as data, to compile in another process."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._guards import detect_fake_mode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torchair.core.sym_expr import SymExpr


@dataclass(frozen=True)
class SymbolInfo:
    """One symbol: its example value and its bounds."""

    symbol: sympy.Symbol
    example: int
    least: int | None
    most: int | None


@dataclass(frozen=True)
class Symbols:
    """The symbols in some numbers, and the facts about them."""

    seen: tuple[SymbolInfo, ...] = ()
    facts: tuple[Any, ...] = ()

    @staticmethod
    def of(numbers: Iterable[torch.SymInt]) -> Symbols:
        """Return the symbols in these numbers of one environment. Raise LookupError if one depends on
        data.
        """
        numbers = list(numbers)
        if not numbers:
            return Symbols()
        env = numbers[0].node.shape_env
        hints = _examples(env)
        symbols = sorted({s for n in numbers for s in n.node.expr.free_symbols}, key=str)
        seen: list[SymbolInfo] = []
        for symbol in symbols:
            if hints[symbol].is_Integer:
                bounds = env.var_to_range[symbol]
                seen.append(
                    SymbolInfo(symbol, int(hints[symbol]), _finite(bounds.lower), _finite(bounds.upper))
                )
            else:  # the ragged size of a nested tensor is not a number: graphs only forward it
                seen.append(SymbolInfo(symbol, 2, 2, None))
        facts = tuple(guard.expr for guard in env.guards if guard.expr.free_symbols <= set(symbols))
        return Symbols(tuple(seen), facts)

    def lines(self) -> list[str]:
        """Return the symbols as text, without their example values."""
        return [*(f"{s.symbol} {s.least} {s.most}" for s in self.seen), *map(str, self.facts)]

    def world(self) -> RebuiltShapeEnv:
        """Return a new environment with these symbols."""
        return RebuiltShapeEnv(self)


@dataclass(frozen=True)
class Environment:
    """The facts of a compilation about sizes and float inputs. A float is a symbol only if no size is."""

    env: ShapeEnv | None

    @staticmethod
    def of(values: Sequence[Any]) -> Environment:
        """Return the environment of the running compilation, or the one in which these values were
        created.
        """
        mode = detect_fake_mode(list(values))
        return Environment(None if mode is None else mode.shape_env)

    def has_examples(self, numbers: Sequence[torch.SymInt]) -> bool:
        """Return whether each symbol in these numbers has an example value. Others depend on data."""
        symbols = {symbol for number in numbers for symbol in number.node.expr.free_symbols}
        return not symbols or (self.env is not None and symbols <= _examples(self.env).keys())

    def lines(self) -> list[str]:
        """Return the facts as complete text, without example values."""
        if self.env is None:
            return []
        ranges = (
            " ".join(map(sympy.srepr, (symbol, bounds.lower, bounds.upper)))
            for symbol, bounds in self.env.var_to_range.items()
        )
        rows = (each for rows in self.env.deferred_runtime_asserts.values() for each in rows)
        return [*sorted(ranges), *(sympy.srepr(row.expr) for row in (*self.env.guards, *rows))]

    def taken_for_granted(self) -> Callable[[], tuple[Any, ...]]:
        """Return a function that returns the assumptions made since this call."""
        env = self.env
        if env is None:
            return tuple
        known = len(env.guards)
        return lambda: tuple(guard.expr for guard in env.guards[known:])

    def take(self, conditions: Sequence[Any]) -> bool:
        """Return whether these conditions hold, and assume them from now on if they do."""
        if not conditions:
            return True
        return self.env is not None and _take(self.env, conditions)


def _take(env: ShapeEnv, conditions: Sequence[Any]) -> bool:
    if not all(condition.xreplace(_examples(env)) == sympy.true for condition in conditions):
        return False
    for condition in conditions:
        env.evaluate_expr(condition, hint=sympy.true)
    return True


class RebuiltShapeEnv:
    """A shape environment with the symbols of another one."""

    def __init__(self, symbols: Symbols) -> None:
        self.env = ShapeEnv()
        self._there: dict[Any, Any] = {}
        for seen in symbols.seen:
            self._there[seen.symbol] = self._made(seen)
        for fact in symbols.facts:
            self.env.evaluate_expr(fact.xreplace(self._there), hint=sympy.true)
        self._known = len(self.env.guards)

    def _made(self, seen: SymbolInfo) -> Any:
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

    def number(self, value: int | SymExpr) -> int | torch.SymInt:
        """Return the number of this environment that corresponds to a number of the other one."""
        if not isinstance(value, SymExpr):
            return value
        expr = value.expr.xreplace(self._there)
        return self.env.create_symintnode(expr, hint=int(expr.xreplace(_examples(self.env))))

    def conditions(self) -> tuple[Any, ...]:
        """Return the assumptions made here so far, in symbols of the other environment."""
        back = {here: there for there, here in self._there.items()}
        return tuple(guard.expr.xreplace(back) for guard in self.env.guards[self._known :])


def _examples(env: ShapeEnv) -> dict[Any, Any]:
    """Return the example values of symbols."""
    return env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val


def _finite(bound: Any) -> int | None:
    """Return the bound, or None for int_oo and the largest int64, which are no bounds."""
    return int(bound) if bound.is_Integer and abs(int(bound)) < 1 << 62 else None
