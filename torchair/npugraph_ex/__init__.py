"""Capture mode under its own name."""

from torchair.backend.doors import compile_fx
from torchair.configs.npugraph_ex import CompilerConfig
from torchair.passes.patterns.table import register_replacement

__all__ = ["CompilerConfig", "compile_fx", "register_replacement"]
