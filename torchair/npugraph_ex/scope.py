"""Scopes for a part of a model in capture mode. Outside of a graph they act immediately, on this thread."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from torchair import scope
from torchair.core.diagnostics import Diagnostics
from torchair.ops.streams import core_limits, stream_ops

__all__ = ["deterministic", "limit_core_num"]


def limit_core_num(
    op_aicore_num: int, op_vectorcore_num: int, stream: Any = None
) -> AbstractContextManager[Any]:
    """Limit the cores that a stream uses, as a context manager.

    Args:
        op_aicore_num: The maximum number of cube cores.
        op_vectorcore_num: The maximum number of vector cores.
        stream: The stream; None for the current one.

    Example:
        >>> with torchair.npugraph_ex.scope.limit_core_num(12, 24):
        ...     y = x @ w
    """
    attributes = scope.core_limits(op_aicore_num, op_vectorcore_num)
    if torch.compiler.is_compiling():
        return scope.Scope(attributes) if stream is None else scope.StreamLimit(attributes, stream)
    module = stream_ops.device_module()
    if module is torch.cuda and stream not in (None, module.current_stream()):
        what = (
            "limit_core_num() has no effect outside of a graph on a CUDA stream that is not the current one"
        )
        Diagnostics().add(what, next="call limit_core_num() inside `with torch.cuda.stream(stream):`")
    return core_limits.cores_limited(op_aicore_num, op_vectorcore_num, module, stream)


def deterministic(level: int) -> AbstractContextManager[Any]:
    """Set the level of determinism of ops, as a context manager.

    Args:
        level: 0 to 3. From 1 on, no result depends on the order in which a device adds.

    Raises:
        ValueError: `level` is invalid.
    """
    if type(level) is not int or level not in core_limits.LEVELS:
        raise ValueError(f"the level of deterministic() must be an int from 0 to 3, got {level!r}")
    if torch.compiler.is_compiling():
        attributes = {
            stream_ops.DETERMINISTIC: str(int(level > 0)),
            stream_ops.DETERMINISTIC_LEVEL: str(level),
        }
        return scope.Scope(attributes)
    return core_limits.as_deterministic(level, stream_ops.device_module())
