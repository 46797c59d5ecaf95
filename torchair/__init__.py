"""torchair: a graph-mode backend for `torch.compile`, for Ascend IR, CUDA graphs and plain CPUs."""

from torchair import configs, debug, ge, npugraph_ex, ops, tools
from torchair.backend.doors import get_compiler, get_npu_backend, register_names
from torchair.backend.explain import explain
from torchair.compare.compare import compare
from torchair.configs.compiler_config import CompilerConfig
from torchair.convert.registry import register_fx_node_ge_converter
from torchair.core.errors import DegradedWarning
from torchair.core.log import logger
from torchair.passes.patterns.table import register_replacement

__all__ = [
    "CompilerConfig",
    "DegradedWarning",
    "configs",
    "debug",
    "explain",
    "ge",
    "get_compiler",
    "get_npu_backend",
    "logger",
    "npugraph_ex",
    "ops",
    "register_fx_node_ge_converter",
    "register_replacement",
    "tools",
]

# The comparison drives the backend, which uses `debug`: so it lives above both, and has its name below.
setattr(debug, "compare", compare)  # noqa: B010 - no module of that package knows the name
register_names()
