"""Convert storage offsets and strides: the IR has none, but if they follow from sizes they are size
arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchair import ge
from torchair.convert.base.operands import INT64, cast, size_of
from torchair.fxgraph.symbols import is_symbol
from torchair.ge.graph import Tensor

aten = torch.ops.aten
TARGETS = (aten.sym_storage_offset.default, aten.sym_stride.int)


def from_sizes(number: Any, placeholders: Sequence[fx.Node], env: Mapping[fx.Node, Any]) -> Tensor | None:
    """Return a symbolic number as sums and products of the symbols of the inputs; None for other numbers."""
    known: dict[Any, Callable[[], Any]] = {}
    for node in placeholders:
        value = node.meta.get("val")
        if is_symbol(value) and isinstance(env[node], Tensor):
            known[value.node.expr] = functools.partial(env.__getitem__, node)
    for node in placeholders:
        value = node.meta.get("val")
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if is_symbol(size):
                known.setdefault(size.node.expr, functools.partial(size_of, env[node], dim))
    result = _made(number.node.expr, known)
    return result if isinstance(result, Tensor) else None


def _made(expr: Any, known: Mapping[Any, Callable[[], Any]]) -> Any:
    if expr in known:
        return known[expr]()
    if expr.is_Integer:
        return int(expr)
    if not expr.is_Add and not expr.is_Mul:
        return None
    parts = [_made(part, known) for part in expr.args]
    if any(part is None for part in parts):
        return None
    join: Any = ge.Add if expr.is_Add else ge.Mul
    return functools.reduce(lambda a, b: join(cast(a, INT64), cast(b, INT64)), parts)
