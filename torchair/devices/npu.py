"""Ascend NPU with `torch_npu`. Its graphs can write their tasks as traces."""

from __future__ import annotations

import torch

from torchair.devices.graph_device import GraphDevice


class Npu(GraphDevice):
    """Huawei's NPUs."""

    graph = "NPUGraph"
    traces = True

    betters = ()

    def codegen(self, *, captures: bool) -> str:
        return "eager"

    def device_at(self, address: int) -> torch.device | None:
        """Return the current NPU if there is one: torch_npu offers no way to find the owner of an address."""
        return torch.device(self.type, self.module.current_device()) if self.why_no_graphs() is None else None


DEVICE = Npu("npu")
