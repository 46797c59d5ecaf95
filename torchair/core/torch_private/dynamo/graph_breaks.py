"""Additional graph breaks in Dynamo."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch._dynamo import graph_break
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.lists import BaseListVariable, SliceVariable
from torch._dynamo.variables.tensor import TensorVariable

__all__ = ["break_at_modules", "break_at_setitem", "break_at_slices"]


def break_at_slices(why: str) -> None:
    """Break graphs at `x[a:b]` of a tensor."""
    call = BuiltinVariable.call_function

    @functools.wraps(call)
    def broken(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn is operator.getitem and isinstance(args[0], TensorVariable) and _has_slice(args[1]):
            _break("x[a:b]", why)
        return call(self, tx, args, kwargs)

    BuiltinVariable.call_function = broken


def break_at_setitem(why: str) -> None:
    """Break graphs at `x[…] = y` of a tensor."""

    @functools.wraps(TensorVariable.method___setitem__)
    def broken(self: Any, tx: Any, key: Any, value: Any) -> Any:
        _break("x[…] = y", why)

    TensorVariable.method___setitem__ = broken


def break_at_modules(kind: type[torch.nn.Module]) -> None:
    """Break graphs at each call of such a module."""
    forward = kind.forward

    @functools.wraps(forward)
    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        graph_break()
        return forward(self, *args, **kwargs)

    kind.forward = broken


def _break(at: str, why: str) -> None:
    unimplemented(gb_type="a requested graph break", context=at, explanation=why, hints=[])


def _has_slice(key: Any) -> bool:
    is_list = isinstance(key, BaseListVariable) and not isinstance(key, SliceVariable)
    parts = key.items if is_list else [key]
    return any(isinstance(part, SliceVariable) or _is_constant_slice(part) for part in parts)


def _is_constant_slice(part: Any) -> bool:
    return part.is_python_constant() and isinstance(part.as_python_constant(), slice)
