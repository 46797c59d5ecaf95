"""Tracing outside of a compile, while other threads may compile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from torchair.core.torch_private.late_module import LateModule

__all__ = ["as_in_a_compile"]

_FRAMES: Any = LateModule("torch._dynamo.convert_frame")


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
