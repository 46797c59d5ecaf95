"""torchair: a graph-mode backend for `torch.compile`, for Ascend IR, CUDA graphs and plain CPUs."""

from torchair import configs, debug, ge, inference, llm_datadist, npugraph_ex, ops, scope, tools
from torchair.backend.doors import get_compiler, get_npu_backend, register_names
from torchair.backend.explain import explain
from torchair.backend.export import dynamo_export
from torchair.backend.graph_breaks import break_graphs
from torchair.backend.hcom import patch_for_hcom
from torchair.backend.loaded import load_air
from torchair.compare.compare import compare
from torchair.configs.compiler_config import CompilerConfig
from torchair.convert.registry import register_fx_node_ge_converter
from torchair.core.errors import DegradedWarning
from torchair.core.log import logger
from torchair.inference._cache_compiler import CompiledModel
from torchair.ops.private_layouts import npu_format_cast, npu_format_cast_via_cpu, use_internal_format_weight
from torchair.passes.patterns.table import register_replacement

__all__ = [
    "CompiledModel",
    "CompilerConfig",
    "DegradedWarning",
    "configs",
    "debug",
    "dynamo_export",
    "explain",
    "ge",
    "get_compiler",
    "get_npu_backend",
    "inference",
    "llm_datadist",
    "load_air",
    "logger",
    "npu_format_cast",
    "npu_format_cast_via_cpu",
    "npugraph_ex",
    "ops",
    "patch_for_hcom",
    "register_fx_node_ge_converter",
    "register_replacement",
    "scope",
    "tools",
    "use_internal_format_weight",
]

break_graphs()
# The comparison drives the backend, which uses `debug`: so it lives above both, and has its name below.
setattr(debug, "compare", compare)  # noqa: B010 - no module of that package knows the name
register_names()
