"""Mixed precision."""

from torchair.sim.npu.amp import autocast_mode, grad_scaler
from torchair.sim.npu.amp.autocast_mode import (
    autocast,
    custom_bwd,
    custom_fwd,
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    is_bf16_supported,
    set_autocast_dtype,
    set_autocast_enabled,
)
from torchair.sim.npu.amp.grad_scaler import GradScaler

__all__ = [
    "GradScaler",
    "autocast",
    "autocast_mode",
    "custom_bwd",
    "custom_fwd",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "grad_scaler",
    "is_autocast_enabled",
    "is_bf16_supported",
    "set_autocast_dtype",
    "set_autocast_enabled",
]
