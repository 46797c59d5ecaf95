"""torchair: a graph-mode backend for `torch.compile`, for Ascend IR, CUDA graphs and plain CPUs.

Public names are loaded on first access; torch's compilers are loaded with the first compile.
"""

import sys
from typing import TYPE_CHECKING, Any

import torch

from torchair import debug
from torchair.core.environment import is_on, text_of
from torchair.core.registries.lazy_registry import declare_operators, is_backend_offered, lazy_getattr

if TYPE_CHECKING:
    from torchair import configs, ge, inference, llm_datadist, npugraph_ex, ops, scope, tools
    from torchair.backend.diagnose.explain import explain
    from torchair.backend.dynamo.entry_points import get_compiler, get_npu_backend
    from torchair.backend.dynamo.patch_hcom import patch_for_hcom
    from torchair.backend.export.loader import load_air
    from torchair.backend.export.writer import dynamo_export
    from torchair.backend.library.custom_op import op
    from torchair.backend.library.opcheck import check_op
    from torchair.backend.service.scheduler import on_optimised, wait_until_optimised
    from torchair.configs.compiler_config import CompilerConfig
    from torchair.convert.base.registry import register_fx_node_ge_converter
    from torchair.core.errors import DegradedWarning
    from torchair.core.log import logger
    from torchair.inference._cache_compiler import CompiledModel
    from torchair.ops.numerics.private_layouts import (
        npu_format_cast,
        npu_format_cast_via_cpu,
        use_internal_format_weight,
    )
    from torchair.passes.patterns.sets.registry import register_replacement

__all__ = [
    "CompiledModel",
    "CompilerConfig",
    "DegradedWarning",
    "check_op",
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
    "on_optimised",
    "op",
    "ops",
    "patch_for_hcom",
    "register_fx_node_ge_converter",
    "register_replacement",
    "scope",
    "tools",
    "use_internal_format_weight",
    "wait_until_optimised",
]

_HOMES = {
    "CompiledModel": "torchair.inference._cache_compiler",
    "CompilerConfig": "torchair.configs.compiler_config",
    "DegradedWarning": "torchair.core.errors",
    "check_op": "torchair.backend.library.opcheck",
    "dynamo_export": "torchair.backend.export.writer",
    "explain": "torchair.backend.diagnose.explain",
    "get_compiler": "torchair.backend.dynamo.entry_points",
    "get_npu_backend": "torchair.backend.dynamo.entry_points",
    "load_air": "torchair.backend.export.loader",
    "logger": "torchair.core.log",
    "npu_format_cast": "torchair.ops.numerics.private_layouts",
    "npu_format_cast_via_cpu": "torchair.ops.numerics.private_layouts",
    "on_optimised": "torchair.backend.service.scheduler",
    "op": "torchair.backend.library.custom_op",
    "patch_for_hcom": "torchair.backend.dynamo.patch_hcom",
    "register_fx_node_ge_converter": "torchair.convert.base.registry",
    "register_replacement": "torchair.passes.patterns.sets.registry",
    "use_internal_format_weight": "torchair.ops.numerics.private_layouts",
    "wait_until_optimised": "torchair.backend.service.scheduler",
}
"""Modules of the public names that are not modules themselves."""


def __getattr__(name: str) -> Any:
    found = globals()[name] = lazy_getattr(__name__, _HOMES, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _compare(name: str) -> Any:
    """Load `torchair.debug.compare` lazily: it needs the backend, which itself imports `debug`."""
    return lazy_getattr("torchair.debug", {"compare": "torchair.compare.compare"}, name)


setattr(debug, "__getattr__", _compare)  # noqa: B010 - no module of that package knows the name
declare_operators()
if text_of("BREAK_GRAPH_OP_LIST"):
    from torchair.backend.dynamo.graph_breaks import break_graphs

    break_graphs()
if not is_backend_offered():
    from torchair.backend.dynamo.entry_points import register_names

    register_names()
if is_on("TORCHAIR_SIM_NPU"):
    from torchair.sim.autoload import provided

    provided()
if hasattr(torch, "npu") or "torch_npu" in sys.modules:
    from torchair import npugraph_ex
