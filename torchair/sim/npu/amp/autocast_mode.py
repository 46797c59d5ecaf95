"""Provide autocast."""

from __future__ import annotations

import functools

import torch
from torch.amp.autocast_mode import autocast as _autocast

from torchair.sim.native import shim
from torchair.sim.python_device import PythonShim

__all__ = ["autocast", "custom_bwd", "custom_fwd"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the types for `torch.autocast("npu", dtype=…)`; none without the C++ part."""
    return [] if isinstance(shim(), PythonShim) else [torch.float16, torch.bfloat16, torch.float32]


def is_bf16_supported() -> bool:
    """Return whether the device computes with bfloat16."""
    return True


is_autocast_enabled = functools.partial(torch.is_autocast_enabled, "npu")
set_autocast_enabled = functools.partial(torch.set_autocast_enabled, "npu")
get_autocast_dtype = functools.partial(torch.get_autocast_dtype, "npu")
set_autocast_dtype = functools.partial(torch.set_autocast_dtype, "npu")
"""Functions that older versions of torch call instead of passing the device."""


class autocast(_autocast):
    """Autocast for the device: `torch.autocast("npu", …)`."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="npu")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="npu")
"""Decorators for `forward` and `backward` of a `torch.autograd.Function`."""
