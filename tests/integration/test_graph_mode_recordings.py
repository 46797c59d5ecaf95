"""What is promised to be recorded is: graph mode, backward graphs, on a simulated device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.support.compile import compile_fn
from tests.support.simulated_device import SimulatedDevice
from tests.support.slow import slow
from torchair.backend.dynamo.aot import compile_dynamo
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.settings.settings import PATIENCE, resolve_settings


def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).relu().sum(0)


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_static_graphs_are_one_launch_from_the_second_call_on(row: SimulatedDevice, codegen: str) -> None:
    run, w = compile_fn(step, codegen=codegen, dynamic=False), torch.randn(4, 4)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(3, 4)
            torch.testing.assert_close(run(x, w), step(x, w))
    assert (row.captures, row.replays) == (1, 4)


def test_a_size_is_recorded_once_it_has_come_a_few_times(row: SimulatedDevice) -> None:
    run, w = compile_fn(step, dynamic=True), torch.randn(4, 4)
    with torch.no_grad():
        for size in (3, 5, 7, 9, 11):
            x = torch.randn(size, 4)
            torch.testing.assert_close(run(x, w), step(x, w))
        assert row.records == 0, "sizes that come once run directly"
        for _ in range(PATIENCE + 2):
            x = torch.randn(5, 4)
            torch.testing.assert_close(run(x, w), step(x, w))
    assert (row.captures, row.replays) == (1, 2)


def test_the_reference_engine_is_not_recorded(row: SimulatedDevice) -> None:
    run, w = compile_fn(step, codegen="reference", dynamic=False), torch.randn(4, 4)
    with torch.no_grad():
        for _ in range(3):
            run(torch.randn(3, 4), w)
    assert row.records == 0


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.mark.parametrize(
    ("mode", "codegen"),
    [
        ("max-autotune", "eager"),
        slow("max-autotune", "inductor"),
        ("npugraph_ex", "eager"),
        slow("npugraph_ex", "inductor"),
    ],
)
def test_a_training_step_is_three_launches(row: SimulatedDevice, mode: str, codegen: str) -> None:
    """Forward, backward and the optimiser; gradients and parameters as eager has them."""
    torch.manual_seed(0)
    ours, theirs = Block(), Block()
    theirs.load_state_dict(ours.state_dict())
    run = compile_fn(ours, mode=mode, codegen=codegen, dynamic=False)
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    update = compile_fn(optimisers[0].step, mode=mode, codegen=codegen, dynamic=False)
    replays = []
    for _ in range(6):
        x = torch.randn(2, 5, 16)
        for model, optimiser in zip((run, theirs), optimisers, strict=True):
            optimiser.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
        torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
        before = row.replays
        update()
        optimisers[1].step()
        torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))
        replays.append((before, row.replays))
    counts = [after - (replays[i - 1][1] if i else 0) for i, (_, after) in enumerate(replays)]
    assert counts[-1] == 3, replays


def test_memory_of_a_backward_graph_is_not_overwritten(row: SimulatedDevice) -> None:
    """Two forwards before the first backward: each has its own saved tensors."""
    run = compile_fn(lambda x: (x.sin() * x.exp()).sum(), mode="npugraph_ex", dynamic=False)
    for _ in range(3):
        xs = [torch.randn(4, requires_grad=True) for _ in range(3)]
        losses = [run(x) for x in xs]
        for x, loss in zip(xs, losses, strict=True):
            (grad,) = torch.autograd.grad(loss, x)
            (want,) = torch.autograd.grad((x.sin() * x.exp()).sum(), x)
            torch.testing.assert_close(grad, want)
    assert row.replays > 3


@pytest.mark.parametrize("blocks", [3, 8])
def test_modules_that_share_a_graph_are_recorded_each(row: SimulatedDevice, blocks: int) -> None:
    """Blocks that are compiled one by one have one graph; their parameters are inputs."""
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(blocks))
    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = "npugraph_ex", "eager"
    run = torch.compile(
        lambda layer, x: layer(x), backend=torchair.get_npu_backend(compiler_config=config), dynamic=False
    )
    with torch.no_grad():
        for _ in range(30):
            before = row.replays
            x = torch.randn(2, 4)
            for layer in layers:
                torch.testing.assert_close(run(layer, x), layer(x))
    assert row.replays - before == blocks, "in the end all of them are replayed"
    assert row.replays >= 25 * blocks


@pytest.mark.usefixtures("row")
def test_backward_uses_parameters_where_they_are() -> None:
    """Saved for backward as they are, or as views: no recording copies them."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = "npugraph_ex", "eager"
    runners: list[Any] = []

    def compile(*args: Any) -> Any:
        runners.append(compile_fx(*args))
        return runners[-1]

    run = torch.compile(
        model,
        backend=lambda gm, inputs: compile_dynamo(gm, inputs, resolve_settings(config), {}, compile),
        dynamic=False,
    )
    for _ in range(4):
        x = torch.randn(2, 32, requires_grad=True)
        run(x).sum().backward()
        got = x.grad
        x.grad = None
        model(x).sum().backward()
        torch.testing.assert_close(got, x.grad)
    report = runners[1].report()
    assert report.recordings[0].replays
    assert "parameter" in [row.role for row in report.inputs]
    assert report.bytes_in_per_call < 32 * 32 * 4, "less than one weight"
