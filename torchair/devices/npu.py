"""Ascend NPU, with `torch_npu`: its graphs write their tasks as traces."""

from __future__ import annotations

import torch

from torchair.devices.graph_device import GraphDevice


class Npu(GraphDevice):
    """Huawei's."""

    graph = "NPUGraph"
    traces = True

    betters = ()

    def codegen(self, *, captures: bool) -> str:
        return "eager"

    def device_at(self, address: int) -> torch.device | None:
        """Where there is an NPU, addresses are its own: nobody can be asked."""
        return torch.device(self.type, self.module.current_device()) if self.why_no_graphs() is None else None


DEVICE = Npu("npu")
