"""Provide `torch_npu.optim`: torch's optimizers under the names of the fused ones on the hardware."""

from __future__ import annotations

import torch
from torch import optim
from torch.nn.utils import clip_grad_norm_

__all__ = ["NpuFusedAdadelta", "NpuFusedAdam", "NpuFusedAdamW", "NpuFusedRMSprop", "NpuFusedSGD"]


class _Fused(optim.Optimizer):
    """Additional method of these optimizers."""

    def clip_grad_norm_fused_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Apply `clip_grad_norm_` to all parameters."""
        given = [parameter for group in self.param_groups for parameter in group["params"]]
        return clip_grad_norm_(given, max_norm, norm_type, error_if_nonfinite)


class NpuFusedAdadelta(_Fused, optim.Adadelta):
    """`torch.optim.Adadelta`."""


class NpuFusedAdam(_Fused, optim.Adam):
    """`torch.optim.Adam`."""


class NpuFusedAdamW(_Fused, optim.AdamW):
    """`torch.optim.AdamW`."""


class NpuFusedRMSprop(_Fused, optim.RMSprop):
    """`torch.optim.RMSprop`."""


class NpuFusedSGD(_Fused, optim.SGD):
    """`torch.optim.SGD`."""
