"""Emit size expressions as nodes of an FX graph."""

# torch's own types describe one of the versions supported here.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.fx.proxy import GraphAppendingTracer

from torchair.core.torch_private.fake.fake_tensors import PythonReferenceAnalysis, sympy_interp

# Functions of symbolic floats, by the name of the function for numbers
SYM_MATH: dict[str, Callable[[Any], Any]] = {
    name: getattr(torch, f"_sym_{name}")
    for name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2")
    if hasattr(torch, f"_sym_{name}")
}


def _applied(fn: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function that is recorded when it is called with a proxy; sympy's dtype is ignored."""

    def run(x: Any, dtype: Any = None) -> Any:
        return x.tracer.create_proxy("call_function", fn, (x,), {}) if isinstance(x, fx.Proxy) else fn(x)

    return run


_floor, _ceil = _applied(math.floor), _applied(math.ceil)


class _Recorded(PythonReferenceAnalysis):
    """Torch's interpreter of size expressions; calls of Python's own functions are recorded."""

    floor_to_int = staticmethod(_floor)
    ceil_to_int = staticmethod(_ceil)
    trunc_to_int = staticmethod(_applied(math.trunc))
    round_to_int = staticmethod(_applied(round))
    abs = staticmethod(_applied(operator.abs))

    @staticmethod
    def floor(x: Any) -> Any:
        return torch.sym_float(_floor(x))

    @staticmethod
    def ceil(x: Any) -> Any:
        return torch.sym_float(_ceil(x))

    # torch 2.11 does not interpret conditional expressions.
    @staticmethod
    def expr_cond_pair(expr: Any, cond: Any) -> tuple[Any, Any]:
        return expr, cond

    @staticmethod
    def piecewise(*pairs: tuple[Any, Any]) -> Any:
        chosen = pairs[-1][0]
        for expr, cond in reversed(pairs[:-1]):
            chosen = torch.sym_ite(cond, expr, chosen)
        return chosen


for _name, _function in SYM_MATH.items():
    setattr(_Recorded, _name, staticmethod(_applied(_function)))


def expression_nodes(graph: fx.Graph, symbols: dict[Any, fx.Node], number: Any) -> Any:
    """Return the node that computes a symbolic number, inserted at the insertion point of `graph`.

    Args:
        graph: the graph.
        symbols: maps each symbol to a node. Computed expressions are added.
        number: the number.
    """
    expr = number.node.expr
    if expr in symbols:
        return symbols[expr]
    if expr.is_number:
        return type(number.node.hint)(expr) if number.node.has_hint() else int(expr)
    before = set(graph.nodes)
    tracer = GraphAppendingTracer(graph)
    env = {symbol: fx.Proxy(symbols[symbol], tracer) for symbol in expr.free_symbols}
    made = sympy_interp(_Recorded, env, expr).node
    for node in [node for node in graph.nodes if node not in before]:
        args, kwargs = map_arg((node.args, node.kwargs), lambda inner: inner.meta["val"])
        node.meta["val"] = node.target(*args, **kwargs)
    symbols[expr] = made
    return made
