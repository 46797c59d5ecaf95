"""What codegen does on the CPU only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchair.codegen.cpu import add_bias_later
from torchair.core.torch_private import detect_fake_mode


def rewritten(dtype: torch.dtype, bias: torch.Tensor) -> tuple[Any, int, list[torch.Tensor]]:
    args = [bias.to(dtype), torch.randn(3, 4).to(dtype), torch.randn(4, 5).to(dtype)]
    gm = make_fx(lambda c, a, b: [torch.addmm(c, a, b)], tracing_mode="fake")(*args)
    inputs = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    return gm, add_bias_later(gm, detect_fake_mode(inputs)), args


def test_the_bias_is_added_after_the_product() -> None:
    gm, changed, args = rewritten(torch.float32, torch.randn(5))
    calls = [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]
    assert changed == 1
    assert "aten.addmm.default" not in calls
    assert calls[0] == "aten.mm.default"
    torch.testing.assert_close(gm(*args)[0], torch.addmm(*args))


@pytest.mark.parametrize(
    ("dtype", "bias"),
    [(torch.bfloat16, torch.randn(5)), (torch.float32, torch.randn(3, 5))],
    ids=["bfloat16", "matrix"],
)
def test_not_where_it_would_round_twice_or_the_bias_is_a_matrix(
    dtype: torch.dtype, bias: torch.Tensor
) -> None:
    _, changed, _ = rewritten(dtype, bias)
    assert changed == 0
