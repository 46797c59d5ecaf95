"""Scopes around a part of a model in capture mode. Outside of a graph they act at once, on this thread."""

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
    """`with` this, what a stream runs uses at most so many cores: this stream, or the current one."""
    attributes = scope.core_limits(op_aicore_num, op_vectorcore_num)
    if torch.compiler.is_compiling():
        return scope.Scope(attributes) if stream is None else scope.StreamLimit(attributes, stream)
    module = stream_ops.device_module()
    if module is torch.cuda and stream not in (None, module.current_stream()):
        what = "outside of a graph, cores of a CUDA stream are limited where it is the current one"
        Diagnostics().add(what, next="open the limit within `with torch.cuda.stream(stream):`")
    return core_limits.cores_limited(op_aicore_num, op_vectorcore_num, module, stream)


def deterministic(level: int) -> AbstractContextManager[Any]:
    """`with` this, ops are as deterministic as level 0 to 3 says: from 1 on no result depends on the order in
    which a device adds.
    """
    if type(level) is not int or level not in core_limits.LEVELS:
        raise ValueError(f"the level of determinism is 0 to 3, not {level!r}")
    if torch.compiler.is_compiling():
        attributes = {
            stream_ops.DETERMINISTIC: str(int(level > 0)),
            stream_ops.DETERMINISTIC_LEVEL: str(level),
        }
        return scope.Scope(attributes)
    return core_limits.as_deterministic(level, stream_ops.device_module())
