"""The configuration of capture mode, under its known import path."""

from torchair.configs.npugraph_ex import CompilerConfig

__all__ = ["CompilerConfig"]
