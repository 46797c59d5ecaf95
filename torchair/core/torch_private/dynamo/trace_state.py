"""State in addition to the graph that affects decompositions: global settings, and kernels that replace
torch's own.
"""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import torch
from torch import library

_ATTENTION = [name for name in dir(torch._C) if name.startswith("_get_") and name.endswith("_sdp_enabled")]
_TAKES_APART = ("Composite", "Autograd")
"""Prefixes of dispatch keys whose kernels run while a graph is traced."""


def trace_state() -> tuple[Any, ...]:
    """Return all settings, for comparison."""
    devices = ("cpu", "cuda", "xpu", "mps", torch._C._get_privateuse1_backend_name())
    autocast = [(each, torch.get_autocast_dtype(each)) for each in devices if torch.is_autocast_enabled(each)]
    return (
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.is_autocast_cache_enabled(),
        autocast,
        [getattr(torch._C, name)() for name in _ATTENTION],
        torch._C._get_math_sdp_allow_fp16_bf16_reduction(),
        torch._C._get_sdp_priority_order(),
        (torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy),
        str(torch.get_default_device()),
        torch.cuda.is_initialized() and torch.cuda.current_device(),
    )


def replaced_ops() -> list[str]:
    """Return the ops of torch whose decompositions were replaced in this process:
    `aten/linear/AutogradCPU`.
    """
    rows = (name.split("/") for name in library._impls if name.startswith("aten/"))
    return sorted("/".join(row) for row in rows if row[-1].startswith(_TAKES_APART))
