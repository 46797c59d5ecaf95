"""Both modes on the simulated device: recorded as on a GPU, with code of the backing device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.support.compile import compile_fn, watching
from tests.support.slow import slow
from torchair.backend.settings.settings import PATIENCE
from torchair.codegen.inductor.device_mapping import MappedProgram

MODES = ["max-autotune", "npugraph_ex"]


def config(mode: str, codegen: str = "eager") -> torchair.CompilerConfig:
    made = torchair.CompilerConfig()
    made.mode, made.engine_config.codegen = mode, codegen
    return made


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.norm(torch.nn.functional.gelu(self.up(x))))
        self.seen.add_(y.sum(0))
        return y


def pair() -> tuple[Net, Net]:
    torch.manual_seed(0)
    here = Net().eval()
    there = Net().eval()
    there.load_state_dict(here.state_dict())
    return here, there.npu()


@pytest.mark.parametrize(
    ("codegen", "mode"),
    [
        ("eager", "max-autotune"),
        ("eager", "npugraph_ex"),
        ("inductor", "max-autotune"),
        slow("inductor", "npugraph_ex"),
        slow("native", "max-autotune"),
        slow("native", "npugraph_ex"),
    ],
)
def test_recorded_and_equal(mode: str, codegen: str) -> None:
    """Results, written buffers, and every call but the first a replay."""
    here, there = pair()
    with watching() as seen, torch.no_grad():
        run = compile_fn(there, codegen=codegen, mode=mode, dynamic=False)
        for _ in range(5):
            x = torch.randn(4, 8)
            got = run(x.npu())
            assert got.device == torch.device("npu:0")
            torch.testing.assert_close(got.cpu(), here(x), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(there.seen.cpu(), here.seen, rtol=1e-4, atol=1e-4)
    (runner,) = seen.runners
    report = runner.report()
    assert sum(row.replays for row in report.recordings) == 4, report
    assert runner.strategy.program.kind == codegen
    assert (codegen == "eager") == (not has_backed(runner.strategy.program))


def has_backed(program: Any) -> bool:
    """Is there one with code for the backing device among the programs in front of each other?"""
    while program is not None:
        if isinstance(program, MappedProgram):
            return True
        program = getattr(program, "program", None)
    return False


@pytest.mark.parametrize(("mode", "replays"), [(None, 0), ("reduce-overhead", 2)])
def test_without_a_backend(mode: str | None, replays: int) -> None:
    """Inductor's code, recorded where its mode asks for that; graphs of the CPU stay Inductor's own."""
    here, there = pair()
    with watching() as seen, torch.no_grad():
        run = torch.compile(there, mode=mode, dynamic=False)
        for _ in range(3):
            x = torch.randn(4, 8)
            torch.testing.assert_close(run(x.npu()).cpu(), here(x), rtol=1e-4, atol=1e-4)
        (runner,) = seen.runners
        assert torch.compile(lambda x: x + 1, mode=mode)(torch.zeros(2)).tolist() == [1.0] * 2
    assert seen.runners == [runner]
    assert runner.strategy.program.kind == "inductor"
    assert has_backed(runner.strategy.program)
    assert sum(row.replays for row in runner.report().recordings) == replays


@pytest.mark.parametrize("mode", MODES)
def test_symbolic_sizes(mode: str) -> None:
    here, there = pair()
    with watching() as seen, torch.no_grad():
        run = compile_fn(there, mode=mode, dynamic=True)
        for rows in (*(3, 4) * (PATIENCE + 2), 5, 3, 4):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(run(x.npu()).cpu(), here(x), rtol=1e-4, atol=1e-4)
    (runner,) = seen.runners
    report = runner.report()
    assert len(report.recordings) >= 2
    assert sum(row.replays for row in report.recordings) >= 3


@pytest.mark.parametrize("mode", MODES)
def test_outputs_that_are_held_are_not_overwritten(mode: str) -> None:
    run = compile_fn(lambda x: x * 2 + 1, mode=mode, dynamic=False)
    held = [run(torch.full((3,), float(step), device="npu")) for step in range(6)]
    assert [y.tolist() for y in held] == [[2.0 * step + 1] * 3 for step in range(6)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codegen", ["eager", slow("inductor")])
def test_training(mode: str, codegen: str) -> None:
    torch.manual_seed(0)
    here = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    there = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).npu()
    there.load_state_dict(here.state_dict())
    run = compile_fn(there, codegen=codegen, mode=mode, dynamic=False)
    ways = [(here, here, torch.optim.SGD(here.parameters(), 0.1))]
    ways.append((run, there, torch.optim.SGD(there.parameters(), 0.1)))
    for _ in range(3):
        x = torch.randn(4, 8)
        for call, model, steps in ways:
            steps.zero_grad()
            call(x.to(model[0].weight.device)).square().sum().backward()
            steps.step()
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_are_drawn_anew(mode: str) -> None:
    run = compile_fn(lambda x: x + torch.rand_like(x), mode=mode, dynamic=False)
    x = torch.zeros(16, device="npu")
    drawn = [run(x).cpu() for _ in range(4)]
    assert all(not torch.equal(one, drawn[at - 1]) for at, one in enumerate(drawn) if at)
    torch.manual_seed(3)
    first = run(x).cpu()
    torch.manual_seed(3)
    assert torch.equal(run(x).cpu(), first)


@pytest.mark.parametrize("mode", MODES)
def test_another_device(mode: str) -> None:
    run = compile_fn(lambda x: (x @ x).relu(), mode=mode, dynamic=False)
    for index in (0, 3):
        x = torch.randn(4, 4)
        for _ in range(3):
            got = run(x.npu(index))
            assert got.device.index == index
            torch.testing.assert_close(got.cpu(), (x @ x).relu())


@pytest.mark.filterwarnings(r"ignore:sim_test\.twice\.default has no converter")
def test_kernels_of_the_user_stay_the_users() -> None:
    """One with a kernel for npu tensors alone is not compiled for the backing device."""
    library = torch.library.Library("sim_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    asked: list[torch.device] = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        asked.append(x.device)
        return x * 2

    library.impl("twice", twice, "PrivateUse1")
    library.impl("twice", torch.empty_like, "Meta")
    x = torch.randn(3, device="npu")
    assert torch.equal(torch.ops.sim_test.twice(x), x * 2)
    for mode in MODES:
        run = compile_fn(lambda x: torch.ops.sim_test.twice(x) + 1, mode=mode, dynamic=False)
        for _ in range(3):
            assert torch.equal(run(x), x * 2 + 1)
    assert {device.type for device in asked} == {"npu"}


@pytest.mark.filterwarnings("ignore:auto_functionalized_v2 has no converter")
@pytest.mark.filterwarnings("ignore:.*put.default has its own kernel for npu")
def test_kernels_of_the_user_that_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHAIR_STRICT", raising=False)
    library = torch.library.Library("sim_test", "FRAGMENT")
    library.define("put(Tensor(a!) x, Tensor y) -> ()")

    def put(x: torch.Tensor, y: torch.Tensor) -> None:
        x.copy_(y)

    library.impl("put", put, "PrivateUse1")
    library.impl("put", lambda x, y: None, "Meta")

    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.ops.sim_test.put(x[:, ::2], x[:, 1::2].sin())
        return x + 1

    for mode in MODES:
        run, x = compile_fn(fn, codegen="inductor", mode=mode, dynamic=False), torch.randn(2, 4, device="npu")
        again = x.clone()
        assert torch.equal(run(x), fn(again))
        assert torch.equal(x, again)


@pytest.mark.full
@pytest.mark.usefixtures("builds")
@pytest.mark.parametrize("mode", [slow("max-autotune"), "npugraph_ex"])
def test_a_better_program_takes_over(mode: str) -> None:
    here, there = pair()
    with watching() as seen, torch.no_grad():
        run = compile_fn(there, codegen="auto", mode=mode, dynamic=False)
        x = torch.randn(4, 8)
        for _ in range(2):
            torch.testing.assert_close(run(x.npu()).cpu(), here(x), rtol=1e-4, atol=1e-4)
        assert torchair.wait_until_optimised(300)
        for _ in range(3):
            torch.testing.assert_close(run(x.npu()).cpu(), here(x), rtol=1e-4, atol=1e-4)
    (runner,) = seen.runners
    assert runner.strategy.program.kind in ("native", "inductor")
    assert has_backed(runner.strategy.program)
