"""Mixed precision."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.autocast_mode import autocast as _autocast
from torch.amp.grad_scaler import GradScaler as _GradScaler

from torchair.sim.load import shim
from torchair.sim.plain import Plain


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What `torch.autocast("npu", dtype=…)` takes: nothing, which torch tells, where C++ is missing."""
    return [] if isinstance(shim(), Plain) else [torch.float16, torch.bfloat16, torch.float32]


def is_bf16_supported() -> bool:
    """Does it compute with bfloat16?"""
    return True


class autocast(_autocast):
    """`torch.autocast("npu", …)`."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(_GradScaler):
    """`torch.amp.GradScaler("npu", …)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("npu", *args, **kwargs)
