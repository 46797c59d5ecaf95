"""Provide mixed precision."""

from torchair.sim.npu.amp import autocast_mode, grad_scaler
from torchair.sim.npu.amp.autocast_mode import autocast, custom_bwd, custom_fwd
from torchair.sim.npu.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "autocast_mode", "custom_bwd", "custom_fwd", "grad_scaler"]
