"""`torch_npu.optim`: torch's own optimisers, by the names of those that are one kernel on the hardware."""

from __future__ import annotations

from torch import optim

__all__ = ["NpuFusedAdadelta", "NpuFusedAdam", "NpuFusedAdamW", "NpuFusedRMSprop", "NpuFusedSGD"]


class NpuFusedAdadelta(optim.Adadelta):
    """`torch.optim.Adadelta`."""


class NpuFusedAdam(optim.Adam):
    """`torch.optim.Adam`."""


class NpuFusedAdamW(optim.AdamW):
    """`torch.optim.AdamW`."""


class NpuFusedRMSprop(optim.RMSprop):
    """`torch.optim.RMSprop`."""


class NpuFusedSGD(optim.SGD):
    """`torch.optim.SGD`."""
