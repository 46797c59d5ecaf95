"""Graph breaks of Dynamo where it would make none."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import graph_break
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables.lists import BaseListVariable, SliceVariable
from torch._dynamo.variables.tensor import TensorVariable

__all__ = ["break_at_modules", "break_at_setitem", "break_at_slices"]


def break_at_slices(why: str) -> None:
    """At `x[a:b]` of a tensor."""
    _break_in_method("method___getitem__", lambda key, *rest: _has_slice(key), why)


def break_at_setitem(why: str) -> None:
    """At `x[…] = y` of a tensor."""
    _break_in_method("method___setitem__", lambda *args: True, why)


def break_at_modules(kind: type[torch.nn.Module]) -> None:
    """At each call of such a module."""
    forward = kind.forward

    @functools.wraps(forward)
    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        graph_break()
        return forward(self, *args, **kwargs)

    kind.forward = broken


def _break_in_method(name: str, breaks: Callable[..., bool], why: str) -> None:
    method = getattr(TensorVariable, name)

    @functools.wraps(method)
    def broken(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if breaks(*args, **kwargs):
            unimplemented(gb_type="a graph break that was asked for", context=name, explanation=why, hints=[])
        return method(self, tx, *args, **kwargs)

    setattr(TensorVariable, name, broken)


def _has_slice(key: Any) -> bool:
    is_list = isinstance(key, BaseListVariable) and not isinstance(key, SliceVariable)
    parts = key.items if is_list else [key]
    return any(isinstance(part, SliceVariable) for part in parts)
