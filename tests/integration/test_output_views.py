"""Outputs that are views of inputs: same autograd history as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchair

MODES = ("max-autotune", "npugraph_ex")
LEAVES: dict[str, Callable[[], torch.Tensor]] = {
    "dense": lambda: torch.arange(3.0),
    "strided": lambda: torch.ones(6)[::2],
    "expanded": lambda: torch.ones(1).expand(3),
    "overlapping": lambda: torch.arange(34.0).as_strided((3,), (0,), 5),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("leaf", LEAVES)
def test_gradient_of_view_output_is_that_of_eager(mode: str, leaf: str) -> None:
    """`as_strided` instead of the view would average gradients of elements that share memory."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y.permute([0])

    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = mode, "eager"
    compiled = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    for _ in range(2):
        results = []
        for run in (fn, compiled):
            y = LEAVES[leaf]().requires_grad_()
            view = run(torch.ones(2), y)[1]
            (view * torch.tensor([2.0, 2.0, 3.0])).sum().backward()
            results.append((y.grad, type(view.grad_fn)))
        assert torch.equal(results[0][0], results[1][0])
        assert results[0][1] is results[1][1]
