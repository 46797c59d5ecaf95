"""Backends and compilers of capture mode."""

from __future__ import annotations

import functools
from typing import Any

from torchair.backend.dynamo import entry_points
from torchair.backend.dynamo.entry_points import Compiler, Decompositions, compile_fx, keyword_only
from torchair.configs.npugraph_ex import CompilerConfig

__all__ = ["compile_fx", "get_compiler", "get_npu_backend"]


@keyword_only
def get_npu_backend(
    *,
    compiler_config: CompilerConfig | None = None,
    custom_decompositions: Decompositions = {},  # noqa: B006 - read, never written
) -> functools.partial[Any]:
    """Create a backend for `torch.compile` that records and replays graphs.

    Args:
        compiler_config: The options; None for the defaults of capture mode.
        custom_decompositions: Functions that decompose ops before compilation, by op overload or packet.

    Returns:
        The backend, for `torch.compile(backend=...)`.
    """
    config = CompilerConfig() if compiler_config is None else compiler_config
    return entry_points.get_npu_backend(compiler_config=config, custom_decompositions=custom_decompositions)


def get_compiler(compiler_config: CompilerConfig | None = None) -> Compiler:
    """Return a compiler of capture mode for functional ATen graphs.

    Args:
        compiler_config: The options; None for the defaults of capture mode.

    Returns:
        A function `compiler(gm, example_inputs)` that returns a callable `CompiledGraph`.
    """
    return entry_points.get_compiler(CompilerConfig() if compiler_config is None else compiler_config)
