"""Scale gradients of small types so that they do not underflow."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler as _GradScaler

__all__ = ["GradScaler"]


class GradScaler(_GradScaler):
    """`torch.amp.GradScaler("npu", …)`; with `dynamic=False` the scale is constant."""

    def __init__(self, *args: Any, dynamic: bool = True, **kwargs: Any) -> None:
        super().__init__("npu", *args, **kwargs)
        self._dynamic = dynamic

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Update the scale for the next step."""
        super().update(self.get_scale() if new_scale is None and not self._dynamic else new_scale)
