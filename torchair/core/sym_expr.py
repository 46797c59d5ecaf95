"""Symbolic numbers without the environment that they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SymExpr:
    """What is left of a symbol of torch's in another process: an expression of sympy's."""

    expr: Any
    is_float: bool = False
    is_unbacked: bool = False
    """Only the data decides it."""
