"""Scopes around a part of a model: on which stream, with how many cores, under which name it runs.

This version has the names only; scopes inside a graph are written with the ops of `torch.ops.air`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch

from torchair.core.errors import NotYet

__all__ = [
    "data_dump",
    "limit_core_num",
    "npu_stream_switch",
    "npu_wait_tensor",
    "op_never_timeout",
    "super_kernel",
]

_SCOPE_OPS = "leave it out: the results are the same"


def npu_stream_switch(
    stream_tag: str, stream_priority: int = 0, enable_inner_parallel: bool = True
) -> AbstractContextManager[Any]:
    """`with` this, ops run on the stream of that tag."""
    _missing("npu_stream_switch", "torch.ops.air.scope_enter(['_user_stream_label'], [tag]) and scope_exit()")


def super_kernel(scope: str, options: str = "") -> AbstractContextManager[Any]:
    """`with` this, ops are merged into one kernel of that name."""
    _missing("super_kernel", _SCOPE_OPS)


def limit_core_num(op_aicore_num: int, op_vectorcore_num: int) -> AbstractContextManager[Any]:
    """`with` this, an op uses at most so many cores."""
    _missing("limit_core_num", _SCOPE_OPS)


def op_never_timeout(enable: bool = True) -> AbstractContextManager[Any]:
    """`with` this, the device never gives up on an op."""
    _missing("op_never_timeout", _SCOPE_OPS)


def data_dump() -> AbstractContextManager[Any]:
    """`with` this, the tensors of ops are dumped."""
    _missing("data_dump", "set config.debug.data_dump.filter to dump chosen nodes")


def npu_wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """`self`, whose later uses wait for `dependency`."""
    _missing("npu_wait_tensor", "torchair.ops.record() and torchair.ops.wait([token]) order streams")


def _missing(name: str, instead: str) -> NoReturn:
    raise NotYet(f"torchair.scope.{name} does nothing in this version", next=instead)
