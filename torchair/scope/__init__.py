"""Apply scopes to a part of a model: streams, cores, kernels, timeouts, dumps.

In a graph, a scope is a pair of nodes; the nodes between them get the attributes of the scope. In eager mode
it has no effect. A block must not contain graph breaks.
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
    """Context manager that sets attributes of ops in a graph; an inner scope overrides an outer one."""

    def __init__(self, attributes: dict[str, str]) -> None:
        self._keys = list(attributes.keys())
        self._values = list(attributes.values())

    def __enter__(self) -> None:
        torch.ops.air.scope_enter(self._keys, self._values)

    def __exit__(self, *error: object) -> None:
        torch.ops.air.scope_exit()


def npu_stream_switch(stream_tag: str, stream_priority: int = 0, enable_inner_parallel: bool = True) -> Scope:
    """Run the ops of the block on the stream with this tag.

    Args:
        stream_tag: Name of the stream; equal tags name the same stream.
        stream_priority: Priority of the stream.
        enable_inner_parallel: Whether the ops of the block may run in parallel.

    Returns:
        A context manager.

    Raises:
        TypeError: An argument has the wrong type.

    Example:
        >>> with torchair.scope.npu_stream_switch("side"):
        ...     y = x @ w
    """
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
    """Compile the ops of the block as one kernel with this name.

    Args:
        scope: Name of the super kernel; None excludes the block from the enclosing super kernel.
        options: `key=value` pairs, separated by colons.

    Returns:
        A context manager.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `options` has an unknown key or an invalid value.
    """
    if scope is None:
        return Scope({stream_ops.SUPER_KERNEL: "", stream_ops.SUPER_KERNEL_OPTIONS: ""})
    _check("scope", scope, str)
    _check("options", options, str)
    return Scope({stream_ops.SUPER_KERNEL: scope, stream_ops.SUPER_KERNEL_OPTIONS: checked_options(options)})


class StreamLimit(Scope):
    """Limit the cores of a stream. A pass reads the stream from the first node in the block."""

    def __init__(self, attributes: dict[str, str], stream: Any) -> None:
        super().__init__({**attributes, **dict.fromkeys(stream_ops.LIMITED_STREAM, "")})
        self._stream = stream

    def __enter__(self) -> None:
        with self._stream:
            super().__enter__()


def limit_core_num(op_aicore_num: int, op_vectorcore_num: int) -> Scope:
    """Limit the cores that each op of the block uses: SMs of a CUDA device, threads of a CPU.

    Args:
        op_aicore_num: Maximum number of cube cores.
        op_vectorcore_num: Maximum number of vector cores.

    Returns:
        A context manager.
    """
    return Scope(core_limits(op_aicore_num, op_vectorcore_num))


def core_limits(op_aicore_num: int, op_vectorcore_num: int) -> dict[str, str]:
    """Return the attributes of a core limit scope."""
    _check("op_aicore_num", op_aicore_num, int)
    _check("op_vectorcore_num", op_vectorcore_num, int)
    limits = (str(op_aicore_num), str(op_vectorcore_num))
    return dict(zip(stream_ops.CORE_LIMITS, limits))  # noqa: B905 - Dynamo traces this


def op_never_timeout(enable: bool = True) -> Scope:
    """Disable the device timeout for the ops of the block.

    This is a hint for Ascend hardware that is written into the graph. It has no effect on other devices.

    Args:
        enable: Whether ops may run without a timeout.

    Returns:
        A context manager.
    """
    _check("enable", enable, bool)
    return Scope({stream_ops.NEVER_TIMEOUT: str(enable)})


def data_dump() -> Scope:
    """Dump the tensors of the ops in the block, if `dump_config` enables dumps.

    Returns:
        A context manager.
    """
    return Scope({stream_ops.DATA_DUMP: "True"})


def npu_wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """Return `self`; all later uses of the result wait for `dependency`.

    Args:
        self: The tensor that is returned.
        dependency: The tensor that must be computed first.

    Returns:
        `self`.

    Raises:
        RuntimeError: The call is not inside a compiled function.
    """
    if not torch.compiler.is_compiling():
        raise NotImplementedError(
            "npu_wait_tensor works only in a compiled graph: compile the calling function with torch.compile"
        )
    torch.ops.air.wait_tensor(self, dependency)
    # During tracing the op replaces `self` under its name: later readers of `self` read the result of the op.
    return self


def _check(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{name} must be {kind.__name__}, got {value!r}")
