"""Tensors dumped out of recordings: the graph is recorded, and every replay writes its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

import torchair
from tests.models.launches import launches
from tests.models.zoo import ROWS, leaves
from tests.support.simulated_device import SimulatedDevice
from torchair.devices import get_device, installed

FOLDER = "worldsize1_global_rank0"
CALLS = 4
CPU = torch.device("cpu")


def backend(folder: Path) -> Callable[..., Any]:
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(folder)
    return torchair.get_npu_backend(compiler_config=config)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """All files; the device is left out of their names."""
    return {
        path.stem.replace("_device_0", ""): torch.load(path) for path in sorted((folder / FOLDER).iterdir())
    }


def update(cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An intermediate and an input are written again after they were made."""
    y = x * 2
    z = y.relu()
    cache.add_(z)
    y.mul_(3)
    return y + cache, z


def check_update(folder: Path, device: torch.device) -> None:
    """Every file of every call against eager."""
    run = torch.compile(update, backend=backend(folder))
    mine, theirs = torch.zeros(3, device=device), torch.zeros(3)
    for call in range(CALLS):
        x = torch.arange(3.0) - call
        before = theirs.clone()
        with torch.no_grad():
            got = run(mine, x.to(device))
        assert len(got) == 2
        want = update(theirs, x)
        torch.testing.assert_close([value.cpu() for value in got], list(want))
        torch.testing.assert_close(mine.cpu(), theirs)
        del got  # what is held is not overwritten: it would be recorded again
        files = {
            name.rpartition("_")[0]: value
            for name, value in stored(folder).items()
            if name.endswith(f"_{call}")
        }
        expected = [before, x, x * 2, (x * 2).relu(), theirs, x * 6, want[0]]
        for value in expected:
            assert any(value.shape == file.shape and torch.equal(value, file) for file in files.values()), (
                value
            )
        assert len(files) == len(expected)


def test_every_replay_writes_its_own(row: SimulatedDevice, tmp_path: Path) -> None:
    check_update(tmp_path, CPU)
    assert (row.captures, row.replays) == (1, CALLS - 1)


@pytest.mark.cuda
def test_on_a_device(tmp_path: Path) -> None:
    check_update(tmp_path, torch.device("cuda"))
    run = torch.compile(update, backend=backend(tmp_path))
    cache, x = torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            run(cache, x)
        found = launches(lambda: run(cache, x))
    assert found.replays == 1
    assert found.inside == found.kernels > 0


def test_a_model_writes_what_it_writes_node_by_node(tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.name == "llama")
    model, feed = row.model(), row.feed(row.shapes[0])
    simulated = SimulatedDevice()
    for name in ("recorded", "direct"):
        (tmp_path / name).mkdir()
        torch.compiler.reset()
        run = torch.compile(model, backend=backend(tmp_path / name), dynamic=False)
        with torch.no_grad(), installed(simulated if name == "recorded" else get_device(CPU)):
            for _ in range(3):
                torch.testing.assert_close(leaves(run(**feed)), leaves(model(**feed)))
    assert simulated.replays > 0
    recorded, direct = stored(tmp_path / "recorded"), stored(tmp_path / "direct")
    assert recorded.keys() == direct.keys()
    assert len(recorded) > 100
    for name, value in recorded.items():
        torch.testing.assert_close(value, direct[name], equal_nan=True, msg=name)


def test_around_an_op_that_needs_the_host(row: SimulatedDevice, tmp_path: Path) -> None:
    """What comes before and after is recorded, and all of it is dumped."""

    def chosen(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[y > 0].sum() + (y + 1).sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(chosen, backend=backend(tmp_path))
        inputs = [torch.tensor([1.0, -1.0, 2.0]) + call for call in range(3)]
        with torch.no_grad(), pytest.warns(torchair.DegradedWarning, match="recorded in"):
            results = [run(x) for x in inputs]
    torch.testing.assert_close(results, list(map(chosen, inputs)))
    assert row.replays > 0
    files = stored(tmp_path)
    for call, x in enumerate(inputs):
        torch.testing.assert_close(files[f"mul_{call}"], x * 2)


def test_a_training_step(row: SimulatedDevice, tmp_path: Path) -> None:
    run = torch.compile(lambda x, w: (x @ w).sin().sum(), backend=backend(tmp_path))
    w = torch.randn(4, 4, requires_grad=True)
    for _ in range(3):
        x = torch.randn(2, 4)
        (got,) = torch.autograd.grad(run(x, w), w)
        (want,) = torch.autograd.grad((x @ w).sin().sum(), w)
        torch.testing.assert_close(got, want)
    assert row.replays > 0
    assert {"sin_2", "cos_2"} <= stored(tmp_path).keys()


def test_its_source_alone_is_not_the_graph(row: SimulatedDevice, tmp_path: Path) -> None:
    """The program returns the copies, too."""
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(tmp_path)
    seen: list[Any] = []

    def keep(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(torchair.get_compiler(config)(gm, inputs))
        return seen[-1]

    run = torch.compile(lambda x: x.sin() + 1, backend=aot_autograd(fw_compiler=keep))
    with torch.no_grad():
        run(torch.ones(2))
    assert seen[0].get_code() is seen[0].runner
