"""Scopes around a part of a model in capture mode. This version has the names only."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torchair import scope
from torchair.core.errors import NotYet

__all__ = ["deterministic", "limit_core_num"]


def limit_core_num(
    op_aicore_num: int, op_vectorcore_num: int, stream: Any = None
) -> AbstractContextManager[Any]:
    """`with` this, an op uses at most so many cores; outside of a graph, on this or the current stream."""
    return scope.limit_core_num(op_aicore_num, op_vectorcore_num)


def deterministic(level: int) -> AbstractContextManager[Any]:
    """`with` this, ops are as deterministic as level 0 to 3 says."""
    raise NotYet(
        "npugraph_ex.scope.deterministic does nothing in this version",
        next="torch.use_deterministic_algorithms(True) holds for the whole process",
    )
