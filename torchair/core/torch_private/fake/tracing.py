"""Tracing functions of the user's as a compile does: while other threads may compile, and without writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import dispatch_functionalize

from torchair.core.lazy_module import LazyModule

__all__ = ["as_in_a_compile", "functionalized"]

_FRAMES: Any = LazyModule("torch._dynamo.convert_frame")


@contextlib.contextmanager
def as_in_a_compile() -> Iterator[None]:
    """No other thread compiles meanwhile: what is traced is state of the process, which two at a time leave
    broken. Calls of compiled functions find it as a compile, and wait; they refuse to run in any other trace.
    """
    with _FRAMES.compile_lock:
        before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = before


def functionalized(function: Callable[..., Any]) -> Callable[..., Any]:
    """What AOTAutograd makes of a function that writes: ops that are not torch's own are wrapped
    (`auto_functionalized`). What is written into an argument is dropped.
    """
    return dispatch_functionalize(function)
