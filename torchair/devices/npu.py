"""Ascend NPU, with `torch_npu`: its graphs write their tasks as traces."""

from __future__ import annotations

from torchair.devices.graphs import GraphDevice


class Npu(GraphDevice):
    """Huawei's."""

    graph = "NPUGraph"
    traces = True

    def codegen(self, *, captures: bool) -> str:
        return "eager"


DEVICE = Npu("npu")
