"""Capture mode under its own name."""

from __future__ import annotations

import sys

import torch

from torchair.core.log import capture_logger as logger
from torchair.npugraph_ex import configs, inference, npu_fx_compiler, ops, patterns, scope, tools
from torchair.npugraph_ex.configs import CompilerConfig
from torchair.npugraph_ex.npu_fx_compiler import compile_fx, get_compiler, get_npu_backend
from torchair.npugraph_ex.patterns import register_replacement

__all__ = [
    "CompilerConfig",
    "compile_fx",
    "configs",
    "get_compiler",
    "get_npu_backend",
    "inference",
    "logger",
    "npu_fx_compiler",
    "ops",
    "patterns",
    "register_replacement",
    "scope",
    "tools",
]


def _show_in_torch_npu() -> None:
    """Make this module `torch.npu.npugraph_ex` and `torch_npu.npugraph_ex`, if those packages are loaded."""
    for owner in (getattr(torch, "npu", None), sys.modules.get("torch_npu")):
        if owner is not None and not hasattr(owner, "npugraph_ex"):
            setattr(owner, "npugraph_ex", sys.modules[__name__])  # noqa: B010 - no module knows the name


_show_in_torch_npu()
