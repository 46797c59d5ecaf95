"""Provide `torch_npu` of the simulated device. Operators of the `npu` library are its attributes; features
that only the hardware has are missing.
"""

from __future__ import annotations

from typing import Any

import torch

from torchair import npugraph_ex
from torchair.core.dtypes import BY_NAME
from torchair.ops import npu as library
from torchair.ops.io.print_tensor import print_tensor as print_npugraph_tensor
from torchair.ops.io.save_tensor import save_tensor as save_npugraph_tensor
from torchair.sim import npu
from torchair.sim.module_aliases import missing, report_missing
from torchair.sim.plugin import (
    _C,
    attention,
    contrib,
    distributed,
    dynamo,
    eager,
    optim,
    profiler,
    utils,
    version,
)
from torchair.sim.plugin.eager import empty_with_format
from torchair.sim.plugin.formats import Format, get_npu_format, npu_format_cast, npu_format_cast_
from torchair.sim.plugin.version import __version__ as __version__

__all__ = [
    "_C",
    "Format",
    "contrib",
    "distributed",
    "dynamo",
    "empty_with_format",
    "get_npu_format",
    "npu",
    "npu_format_cast",
    "npu_format_cast_",
    "npugraph_ex",
    "optim",
    "print_npugraph_tensor",
    "profiler",
    "save_npugraph_tensor",
    "utils",
    "version",
]

__simulated__ = True
"""Marks this module as the simulated one."""

OWN_TYPES = 256
"""Offset of the numbers of IR types that torch has no number for."""
hifloat8 = OWN_TYPES + BY_NAME["HIFLOAT8"].runtime
float8_e8m0fnu = OWN_TYPES + BY_NAME["FLOAT8_E8M0"].runtime
float4_e2m1fn_x2 = OWN_TYPES + BY_NAME["FLOAT4_E2M1"].runtime
float4_e1m2fn_x2 = OWN_TYPES + BY_NAME["FLOAT4_E1M2"].runtime


def __getattr__(name: str) -> Any:
    """Return `torch.ops.npu.npu_rms_norm` for `torch_npu.npu_rms_norm`, also for user-defined operators."""
    if name in attention.NAMES:
        return getattr(getattr(torch.ops, attention.NAMES[name]), name)
    if name in eager.NAMES:
        return getattr(torch.ops.npu, name)
    if not name.startswith("_"):
        for namespace in ("npu", "npu_inference"):
            if f"{namespace}.{name}.default" in library.schemas():
                return getattr(getattr(torch.ops, namespace), name)
    if name.startswith("npu_") and hasattr(torch.ops.npu, name):
        return getattr(torch.ops.npu, name)
    raise missing(
        __name__,
        name,
        "to add an operator, define it with torch.library in the namespace `npu` for the key PrivateUse1 "
        "(docs/tutorials/port-a-torch_npu-script.md)",
    )


def __dir__() -> list[str]:
    names = {full.split(".")[1] for full in library.schemas() if full.startswith("npu")}
    return sorted({*globals(), *names, *attention.NAMES, *eager.NAMES})


report_missing(__name__)
