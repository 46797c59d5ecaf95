"""What codegen does on the CPU only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchair.codegen import build
from torchair.codegen.inductor.cpu_fixups import add_bias_later, give_rows_their_stride
from torchair.core.torch_private.fake.fake_tensors import detect_fake_mode


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


def rows(fn: Any, *shapes: tuple[int, ...], mode: str = "fake") -> tuple[Any, int, list[torch.Tensor]]:
    args = [torch.randn(shape) for shape in shapes]
    gm = make_fx(fn, tracing_mode=mode)(*args)
    inputs = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    return gm, give_rows_their_stride(gm, detect_fake_mode(inputs)), args


def test_a_computed_row_has_a_stride() -> None:
    def two(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        row = (x * 2).view(1, 8)
        return [torch.mm(row, w), torch.mm(row, v), row + 1]

    gm, changed, args = rows(two, (1, 1, 8), (8, 3), (8, 5))
    assert changed == 2
    torch.testing.assert_close(gm(*args), two(*args))
    program = build("inductor", gm, [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")])
    assert "(0, 1), 0)" not in program.source
    torch.testing.assert_close(list(program(list(args))), two(*args))


@pytest.mark.parametrize(
    ("fn", "shape", "mode"),
    [
        (lambda x, w: [torch.mm((x * 2).view(2, 8), w)], (2, 1, 8), "fake"),
        (lambda x, w: [torch.mm((x * 2).view(1, 8), w)], (1, 2, 4), "fake"),
        (lambda x, w: [torch.mm(x.view(1, 8), w)], (1, 1, 8), "fake"),
        (lambda x, w: [torch.mm(x[:, :, ::2].reshape(1, 8), w)], (1, 1, 16), "fake"),
        (lambda x, w: [torch.mm((x * 2).view(1, x.shape[-1]), w)], (1, 1, 8), "symbolic"),
    ],
    ids=["two rows", "two dims", "an input", "every second", "a symbol"],
)
def test_what_is_no_computed_row_is_left_alone(fn: Any, shape: tuple[int, ...], mode: str) -> None:
    _, changed, _ = rows(fn, shape, (8, 3), mode=mode)
    assert changed == 0
