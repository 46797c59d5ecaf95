"""Loaded graphs run as compiled models do: the same runner, and the next way where one fails, and is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.backend.export import wire
from tests.backend.export.test_round_trip import Cache, exported
from tests.support.models import mlp
from tests.support.simulated_device import SimulatedDevice
from torchair.backend.export import loader as loading
from torchair.backend.pipeline import generate
from torchair.capture.strategies.replay import Replay
from torchair.core.errors import Degraded
from torchair.engine.lower import KernelFailed
from torchair.ge.graph import Op
from torchair.passes import GE_PASSES
from torchair.passes.pass_manager import Step

X = torch.randn(3, 4)


def with_codegen(codegen: str = "eager", *, strict: bool = False) -> Any:
    config = torchair.CompilerConfig()
    config.engine_config.codegen = codegen
    config.engine_config.strict = strict
    return config


def runner_of(loaded: Any) -> Any:
    (found,) = loaded.compiled.values()
    return found.runner


def test_recorded_by_the_runner_of_compiled_models(row: SimulatedDevice, tmp_path: Path) -> None:
    """One recording, then replays, as many as of the compiled model."""
    model = mlp(4, 8, 2)
    exported(model, tmp_path, X)
    counts = []
    compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=with_codegen()))
    loaded = torchair.load_air(tmp_path / "net.air", config=with_codegen())
    for run in (compiled, loaded):
        before = row.records, row.replays
        with torch.no_grad():
            for _ in range(4):
                x = torch.randn(3, 4)
                torch.testing.assert_close(run(x), model(x))
        counts.append((row.records - before[0], row.replays - before[1]))
    assert counts[0] == counts[1]
    assert counts[1][1] >= 3
    runner = runner_of(loaded)
    assert isinstance(runner.strategy, Replay)
    assert runner.why_not is None
    roles = [item.role for item in runner.report().inputs]
    assert roles.count("parameter") == 4, roles


def test_caches_are_written_in_place_by_recordings(row: SimulatedDevice, tmp_path: Path) -> None:
    exported(Cache(), tmp_path, torch.zeros(6, 4), torch.randn(2, 4), torch.tensor([1, 4]))
    loaded = torchair.load_air(tmp_path / "net.air", config=with_codegen())
    mine, theirs = torch.zeros(6, 4), torch.zeros(6, 4)
    at = mine.data_ptr()
    for _ in range(4):
        x, place = torch.randn(2, 4), torch.tensor([0, 3])
        torch.testing.assert_close(loaded(mine, x, place), Cache()(theirs, x, place))
        torch.testing.assert_close(mine, theirs)
    assert mine.data_ptr() == at
    assert row.replays >= 3


def test_sizes_have_recordings_of_their_own(row: SimulatedDevice, tmp_path: Path) -> None:
    model = mlp(4, 8, 2)
    exported(model, tmp_path, X, dynamic=True)
    loaded = torchair.load_air(tmp_path / "net.air", config=with_codegen())
    for rows in (3, 5) * 8:
        x = torch.randn(rows, 4)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), model(x))
    assert len(loaded.compiled) == 1
    assert row.replays >= 4


# Ways around what fails


def check_told(model: nn.Module, folder: Path, text: str, codegen: str = "eager") -> Any:
    exported(model, folder, X)
    loaded = torchair.load_air(folder / "net.air", config=with_codegen(codegen))
    with pytest.warns(torchair.DegradedWarning, match=text):
        got = loaded(X)
    with torch.no_grad():
        torch.testing.assert_close(got, model(X))
        torch.testing.assert_close(loaded(X), model(X))
    strict = torchair.load_air(folder / "net.air", config=with_codegen(codegen, strict=True))
    with pytest.raises(Degraded, match=text):
        strict(X)
    return loaded


def test_a_code_generator_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = generate.build

    def build(kind: str, *rest: Any) -> Any:
        if kind == "inductor":
            raise ValueError("no such kernel")
        return first(kind, *rest)

    monkeypatch.setattr(generate, "build", build)
    loaded = check_told(mlp(4, 8, 2), tmp_path, "inductor could not compile .*no such kernel", "inductor")
    assert runner_of(loaded).program.kind == "eager"


def test_a_pass_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, context: Any) -> int:
        raise ValueError("no luck")

    monkeypatch.setattr(loading, "GE_PASSES", (Step(broken), *GE_PASSES))
    check_told(mlp(4, 8, 2), tmp_path, "the pass broken failed: .*no luck; the graph is compiled without it")


def test_a_kernel_that_cannot_be_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(*_: Any) -> Any:
        raise KernelFailed(Op("gelu", "Gelu"), ValueError("not traced"), "x float32[3]")

    monkeypatch.setattr(loading, "lower", lower)
    loaded = check_told(
        mlp(4, 8, 2), tmp_path, "Gelu failed on gelu: not traced; its IR is interpreted, op by op"
    )
    assert runner_of(loaded).program.kind == "reference"


class Related(nn.Module):
    """Only sizes whose product is 12 will do."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten() + self.bias


def test_sizes_that_belong_together(tmp_path: Path) -> None:
    """The file says with which sizes it was traced; without that, it is compiled for each, and says so."""
    model = Related()
    exported(model, tmp_path, torch.randn(3, 4), dynamic=True)
    loaded = torchair.load_air(tmp_path / "net.air", config=with_codegen())
    shapes = [torch.randn(3, 4), torch.randn(2, 6), torch.randn(4, 3)]
    with torch.no_grad():
        for x in shapes:
            torch.testing.assert_close(loaded(x), model(x))
        assert list(loaded.compiled) == [None]
        whole = wire.read(tmp_path / "net.air")
        call = whole.graph[0].attr["_torchair_call"]
        call.s = json.dumps({**json.loads(call.s), "examples": {}}).encode()
        (tmp_path / "other.air").write_bytes(whole.SerializeToString())
        loaded = torchair.load_air(tmp_path / "other.air", config=with_codegen())
        with pytest.warns(torchair.DegradedWarning, match="is compiled for each size"):
            torch.testing.assert_close(loaded(shapes[0]), model(shapes[0]))
        torch.testing.assert_close(loaded(shapes[1]), model(shapes[1]))
        assert len(loaded.compiled) == 2
