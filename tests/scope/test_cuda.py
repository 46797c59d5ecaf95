"""Streams on a GPU: beside each other inside one recorded graph, and right."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

import torchair
from tests.support.compile import compile_fn, watching
from torchair.core.errors import DegradedWarning

pytestmark = pytest.mark.cuda

MODES = pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
CODEGENS = pytest.mark.parametrize("codegen", ["eager", "inductor"])
scope, ops = torchair.scope, torchair.ops


def labelled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two chains that do not need each other."""
    with scope.npu_stream_switch("left"):
        a = x
        for _ in range(4):
            a = torch.tanh(a @ y)
        left = ops.record()
    with scope.npu_stream_switch("right"):
        b = y
        for _ in range(4):
            b = torch.tanh(b @ x)
        right = ops.record()
    ops.wait([left, right])
    return a + b


def native(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        a = torch.tanh(x @ y)
    b = torch.tanh(y @ x)
    current.wait_stream(side)
    return a + b


def eagerly(fn: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if fn is native:
        return torch.tanh(x @ y) + torch.tanh(y @ x)
    a, b = x, y
    for _ in range(4):
        a, b = torch.tanh(a @ y), torch.tanh(b @ x)
    return a + b


@MODES
@CODEGENS
@pytest.mark.parametrize("fn", [labelled, native], ids=lambda fn: fn.__name__)
def test_right_and_recorded(fn: Callable[..., Any], mode: str, codegen: str) -> None:
    x, y = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    torch.compiler.reset()
    with watching() as seen, torch.no_grad():
        run = compile_fn(fn, {"engine_config.codegen": codegen}, mode, fullgraph=True)
        for _ in range(6):
            x.normal_()
            torch.testing.assert_close(run(x, y), eagerly(fn, x, y), rtol=1e-4, atol=1e-4)
    report = seen.runner.report()
    assert sum(row.replays for row in report.recordings) > 0, report


@MODES
@CODEGENS
def test_kernels_run_on_several_streams(mode: str, codegen: str) -> None:
    x, y = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    torch.compiler.reset()
    with torch.no_grad():
        run = compile_fn(labelled, {"engine_config.codegen": codegen}, mode, fullgraph=True)
        for _ in range(5):
            run(x, y)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run(x, y)
            torch.cuda.synchronize()
    kernels = [event for event in profile.events() if "gemm" in event.name or "cutlass" in event.name]
    spans = sorted((event.time_range.start, event.time_range.end) for event in kernels)
    assert any(later[0] < earlier[1] for earlier, later in pairwise(spans)), spans


def test_missing_wait_warns_before_run() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with scope.npu_stream_switch("side"):
            a = x @ y
        return a + 1

    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    torch.compiler.reset()
    with pytest.warns(DegradedWarning, match="a race between streams: mm"), torch.no_grad():
        made = compile_fn(fn, {}, "npugraph_ex")(x, y)
    torch.testing.assert_close(made, x @ y + 1, rtol=1e-4, atol=1e-4)
