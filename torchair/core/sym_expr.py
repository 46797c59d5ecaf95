"""Symbolic numbers without their shape environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SymExpr:
    """A symbol of torch in another process, as an expression of sympy."""

    expr: Any
    is_float: bool = False
    is_unbacked: bool = False
    """Whether only the data determines it."""
