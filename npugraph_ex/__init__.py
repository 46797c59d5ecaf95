"""Capture mode as a package of its own: `torchair.npugraph_ex`, for engines that import it so."""

from torchair.npugraph_ex import (
    CompilerConfig,
    compile_fx,
    get_compiler,
    get_npu_backend,
    logger,
    register_replacement,
)

__all__ = [
    "CompilerConfig",
    "compile_fx",
    "get_compiler",
    "get_npu_backend",
    "logger",
    "register_replacement",
]
