"""The configuration of capture mode."""

from torchair.npugraph_ex.configs.compiler_config import CompilerConfig

__all__ = ["CompilerConfig"]
