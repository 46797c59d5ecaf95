"""Evaluate sizes and size conditions that files contain as text: arithmetic and comparisons of names."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import Any

from torchair.core.errors import BadGraph

_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.AST], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CHOICES = {"max": max, "min": min}
LONGEST = 4096
"""The maximum number of characters of a size. Arithmetic on numbers of many digits takes time and memory."""


def names_in(text: str) -> set[str]:
    """Return the symbols in an expression."""
    found = {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}
    return found - _CHOICES.keys()


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Evaluate a size with these values of its symbols."""
    return _evaluate(_value, text, values)


def holds(text: str, values: Mapping[str, Any]) -> bool:
    """Whether a size condition is true with these values of its symbols."""
    return bool(_evaluate(_condition, text, values))


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text[: LONGEST + 1], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadGraph(f"{text[:80]!r} is not a valid size") from error


def _evaluate(how: Any, text: str, values: Mapping[str, Any]) -> Any:
    if len(text) > LONGEST:
        raise BadGraph(f"{text[:80]!r}… is not a valid size: it has more than {LONGEST} characters")
    try:
        return how(_parsed(text), text, values)
    except (ArithmeticError, RecursionError) as error:
        raise BadGraph(f"cannot evaluate {text[:80]!r}: {error}", got=str(dict(values))) from error


def _value(node: ast.expr, text: str, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, text, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, text, values), _value(right, text, values))
        case ast.BinOp(left=ast.Name(id=name), op=ast.Pow(), right=ast.Constant(value=2)) if name in values:
            return values[name] * values[name]
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _CHOICES:
            return _CHOICES[name](_value(left, text, values), _value(right, text, values))
        case _:
            raise BadGraph(f"{text[:80]!r} is not a valid size for this call", near=", ".join(values))


def _condition(node: ast.expr, text: str, values: Mapping[str, Any]) -> bool:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return _COMPARISONS[type(op)](_value(left, text, values), _value(right, text, values))
        case ast.BoolOp(op=op, values=parts):
            found = (_condition(part, text, values) for part in parts)
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _condition(inner, text, values)
        case _:
            raise BadGraph(f"{text[:80]!r} is not a valid size condition", near=", ".join(values))
