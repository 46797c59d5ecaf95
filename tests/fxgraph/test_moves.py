"""Copies between devices are torch's: the IR knows none, and nothing is lost by it."""

from __future__ import annotations

import torch

from tests.capture.base.test_host_ops import traced
from torchair.fxgraph.fake_values import moves_between_devices


def test_what_moves_between_devices() -> None:
    gm = traced(lambda x, y: (x + y.to("meta"), y.double(), x.half()), "meta", "cpu")
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    home = torch.device("meta")
    assert [moves_between_devices(node, home) for node in calls] == [True, False, False, False]
