"""Capture mode as a package of its own: `torchair.npugraph_ex`, for engines that import it so. Its modules
are the same objects under both names.
"""

import sys

from torchair.npugraph_ex import (
    CompilerConfig,
    compile_fx,
    configs,
    get_compiler,
    get_npu_backend,
    inference,
    logger,
    npu_fx_compiler,
    ops,
    patterns,
    register_replacement,
    scope,
    tools,
)

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

for _name, _module in list(sys.modules.items()):
    if _name.startswith("torchair.npugraph_ex."):
        sys.modules[_name.removeprefix("torchair.")] = _module
