"""Capture mode under its own name."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from torchair.backend import doors
from torchair.backend.doors import Compiler, Decompositions, compile_fx
from torchair.configs.npugraph_ex import CompilerConfig
from torchair.core.log import capture_logger as logger
from torchair.passes.patterns.table import register_replacement

__all__ = [
    "CompilerConfig",
    "compile_fx",
    "get_compiler",
    "get_npu_backend",
    "logger",
    "register_replacement",
]


def get_npu_backend(
    *misplaced: Any,
    compiler_config: CompilerConfig | None = None,
    custom_decompositions: Decompositions | None = None,
) -> functools.partial[Any]:
    """A backend for `torch.compile` that records and replays, with this configuration."""
    config = CompilerConfig() if compiler_config is None else compiler_config
    return doors.get_npu_backend(
        *misplaced, compiler_config=config, custom_decompositions=custom_decompositions
    )


def get_compiler(compiler_config: CompilerConfig | None = None) -> Compiler:
    """A compiler `f(gm, example_inputs)` for a graph that is already functional ATen."""
    return doors.get_compiler(CompilerConfig() if compiler_config is None else compiler_config)


def _show_in_torch_npu() -> None:
    """`torch.npu.npugraph_ex` and `torch_npu.npugraph_ex` are this module, where those packages are there."""
    for owner in (getattr(torch, "npu", None), sys.modules.get("torch_npu")):
        if owner is not None and not hasattr(owner, "npugraph_ex"):
            setattr(owner, "npugraph_ex", sys.modules[__name__])  # noqa: B010 - no module knows the name


_show_in_torch_npu()
