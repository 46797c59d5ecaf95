"""Kernels are counted by who launched them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.integration.test_graph_mode_recordings import Block
from tests.models.launches import Launches, launches, of_trace
from tests.models.sweep import EQUAL, How, run_family
from tests.support.compile import compile_fn


def event(name: str, correlation: int, cat: str) -> dict[str, Any]:
    return {"name": name, "cat": cat, "args": {"correlation": correlation}}


def test_kernels_of_replays() -> None:
    found = of_trace([
        event("cudaGraphLaunch", 1, "cuda_runtime"), event("gemm", 1, "kernel"), event("relu", 1, "kernel"),
        event("cudaLaunchKernel", 2, "cuda_runtime"), event("copy", 2, "kernel"), {"name": "no args"},
    ])  # fmt: skip
    assert found == Launches(replays=1, kernels=3, inside=2)
    assert found.share == pytest.approx(2 / 3)


@pytest.mark.cuda
@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_a_small_model_is_one_launch(mode: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)).cuda().eval()
    config = torchair.CompilerConfig()
    config.mode = mode
    run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
    x = torch.randn(4, 8, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), model(x))
        assert torchair.wait_until_optimised(300)
        run(x)  # the better program is recorded
        run(x)
        assert launches(lambda: run(x)).replays == 1
        assert launches(lambda: run(x)).share == 1.0


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gpt_neo", "vit"])
def test_families_are_replayed(family: str) -> None:
    result = run_family(family, how=How(device="cuda"))
    assert set(result.modes.values()) == {EQUAL}
    for replays, kernels, inside in result.launches.values():
        assert inside >= 0.95 * kernels
        assert replays >= 1


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:.*_efficient_attention.* has no converter:torchair.DegradedWarning")
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_a_training_step_is_few_launches(mode: str, optimiser: type[torch.optim.Optimizer]) -> None:
    """Forward, backward and the optimiser; gradients and parameters as eager has them."""
    torch.manual_seed(0)
    ours, theirs = (nn.Sequential(*(Block() for _ in range(3))).cuda() for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    run = compile_fn(ours, mode=mode, codegen="auto", dynamic=False)
    # Gradients that are 0 but for rounding (of the biases of keys) must not become steps of full length.
    options = {"lr": 1e-3} | ({"capturable": True, "eps": 1e-2} if optimiser is torch.optim.AdamW else {})
    optimisers = [optimiser(model.parameters(), **options) for model in (ours, theirs)]
    update = compile_fn(optimisers[0].step, mode=mode, codegen="auto", dynamic=False)

    def step(model: Any, zero: Any, update: Any, x: torch.Tensor) -> list[torch.Tensor]:
        zero(set_to_none=False)
        model(x).square().mean().backward()
        update()
        return [p.grad for p in model.parameters()]

    near = {"rtol": 1e-4, "atol": 1e-5}
    for _ in range(6):
        x = torch.randn(2, 5, 16, device="cuda")
        got = step(run, optimisers[0].zero_grad, update, x)
        torch.testing.assert_close(got, step(theirs, optimisers[1].zero_grad, optimisers[1].step, x), **near)
        torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()), **near)
    seen = launches(lambda: step(run, optimisers[0].zero_grad, update, x))
    assert 3 <= seen.replays <= 4
