"""Scopes around a part of a model: streams, cores, kernels, watchdogs, dumps.

In a graph a scope is a pair of nodes, and what is between them gets the attributes of the scope; outside of a
graph it does nothing. Blocks must not contain graph breaks.
"""

from __future__ import annotations

from typing import Any

import torch

from torchair.ops.streams import stream_ops
from torchair.scope.super_kernel_options import checked_options

__all__ = [
    "data_dump",
    "limit_core_num",
    "npu_stream_switch",
    "npu_wait_tensor",
    "op_never_timeout",
    "super_kernel",
]


class Scope:
    """`with` this, the ops of a graph have these attributes; of equal ones that of the inner scope counts."""

    def __init__(self, attributes: dict[str, str]) -> None:
        self._keys = list(attributes.keys())
        self._values = list(attributes.values())

    def __enter__(self) -> None:
        torch.ops.air.scope_enter(self._keys, self._values)

    def __exit__(self, *error: object) -> None:
        torch.ops.air.scope_exit()


def npu_stream_switch(stream_tag: str, stream_priority: int = 0, enable_inner_parallel: bool = True) -> Scope:
    """`with` this, ops run on the stream of that tag; equal tags are one stream."""
    _check("stream_tag", stream_tag, str)
    _check("stream_priority", stream_priority, int)
    _check("enable_inner_parallel", enable_inner_parallel, bool)
    return Scope(
        {
            stream_ops.LABEL: stream_tag,
            stream_ops.PRIORITY: str(stream_priority),
            stream_ops.INNER_PARALLEL: str(enable_inner_parallel),
        }
    )


def super_kernel(scope: str | None, options: str = "") -> Scope:
    """`with` this, ops are one unit of code generation of that name. `options` are `key=value`, separated by
    colons; no name takes an inner block out again.
    """
    if scope is None:
        return Scope({stream_ops.SUPER_KERNEL: "", stream_ops.SUPER_KERNEL_OPTIONS: ""})
    _check("scope", scope, str)
    _check("options", options, str)
    return Scope({stream_ops.SUPER_KERNEL: scope, stream_ops.SUPER_KERNEL_OPTIONS: checked_options(options)})


class StreamLimit(Scope):
    """A limit of the cores of a stream. Which one, a pass reads off the stream that its first node is on."""

    def __init__(self, attributes: dict[str, str], stream: Any) -> None:
        super().__init__({**attributes, **dict.fromkeys(stream_ops.LIMITED_STREAM, "")})
        self._stream = stream

    def __enter__(self) -> None:
        with self._stream:
            super().__enter__()


def limit_core_num(op_aicore_num: int, op_vectorcore_num: int) -> Scope:
    """`with` this, an op uses at most so many cores: SMs of a CUDA device, threads of a CPU."""
    return Scope(core_limits(op_aicore_num, op_vectorcore_num))


def core_limits(op_aicore_num: int, op_vectorcore_num: int) -> dict[str, str]:
    """The attributes of such a scope."""
    _check("op_aicore_num", op_aicore_num, int)
    _check("op_vectorcore_num", op_vectorcore_num, int)
    limits = (str(op_aicore_num), str(op_vectorcore_num))
    return dict(zip(stream_ops.CORE_LIMITS, limits))  # noqa: B905 - Dynamo traces this


def op_never_timeout(enable: bool = True) -> Scope:
    """`with` this, the device never gives up on an op that takes long. A hint for Ascend hardware: it is
    written into the graph, and nothing here has such a watchdog.
    """
    _check("enable", enable, bool)
    return Scope({stream_ops.NEVER_TIMEOUT: str(enable)})


def data_dump() -> Scope:
    """`with` this, the tensors of ops are dumped, where `dump_config` switches dumps on."""
    return Scope({stream_ops.DATA_DUMP: "True"})


def npu_wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """`self`, whose later uses wait for `dependency`; only inside of a compiled function."""
    if not torch.compiler.is_compiling():
        raise NotImplementedError(
            "npu_wait_tensor orders the ops of a graph: compile the function that calls it with torch.compile"
        )
    torch.ops.air.wait_tensor(self, dependency)
    # During tracing the op takes over the name of `self`: whoever reads it reads what the op returned.
    return self


def _check(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{name} is to be {kind.__name__}, not {value!r}")
