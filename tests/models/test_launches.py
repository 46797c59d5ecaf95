"""Kernels are counted by who launched them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchair
from tests.models.launches import Launches, launches, of_trace
from tests.models.sweep import EQUAL, How, run_family


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
