"""Trace user functions as a compile does: synchronized with compiles in other threads, and without writes."""

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
    """Hold the compile lock: tracing uses global state, which two threads at a time would break. Calls of
    compiled functions treat this as a compile and wait; in any other trace they refuse to run.
    """
    with _FRAMES.compile_lock:
        before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = before


def functionalized(function: Callable[..., Any]) -> Callable[..., Any]:
    """Functionalize a function as AOTAutograd does: mutating ops outside torch's own are wrapped
    (`auto_functionalized`). Writes to arguments are dropped.
    """
    return dispatch_functionalize(function)
