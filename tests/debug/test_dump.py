"""Dumped tensors: which files, with which values, and results that stay equal to eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

FOLDER = "worldsize1_global_rank0"


def work(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.add_(x)
    return torch.relu(cache * 2) + x


def run(folder: Path, calls: int, **options: Any) -> list[torch.Tensor]:
    """Call with dumping on; results are compared with eager, and returned."""
    compiled = torch.compile(
        work,
        backend="npugraph_ex",
        options={"dump_tensor_data": True, "data_dump_dir": str(folder), **options},
    )
    mine, theirs, results = torch.zeros(3), torch.zeros(3), []
    with torch.no_grad():
        for number in range(calls):
            x = torch.arange(3.0) - number
            results.append(compiled(mine, x))
            torch.testing.assert_close(results[-1], work(theirs, x))
            torch.testing.assert_close(mine, theirs)
    return results


@pytest.mark.parametrize("stage", ["optimized", "original"])
def test_every_tensor_of_every_call(tmp_path: Path, stage: str) -> None:
    results = run(tmp_path, 2, data_dump_stage=stage)
    files = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert {"relu_0.pt", "relu_1.pt", "arg1_1_0.pt", "arg1_1_1.pt"} <= files
    stored = [torch.load(tmp_path / FOLDER / f"add_1_{call}.pt") for call in range(2)]
    torch.testing.assert_close(stored, results)


def test_arrays_of_the_untouched_graph(tmp_path: Path) -> None:
    results = run(tmp_path, 2, force_eager=True)
    (graph,) = (tmp_path / FOLDER).iterdir()
    assert graph.name.startswith("graph_")
    assert sorted(path.name for path in graph.iterdir()) == ["0", "1"]
    for call, result in enumerate(results):
        (path,) = (graph / str(call)).glob("add_1-aten.add.Tensor.OUTPUT.0.*.npy")
        np.testing.assert_allclose(np.load(path), result.numpy())
        assert list((graph / str(call)).glob("relu-aten.relu.default.INPUT.0.*.npy"))


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    compiled = torch.compile(
        lambda x: x * 2,
        backend="npugraph_ex",
        options={"dump_tensor_data": True, "force_eager": True, "data_dump_dir": str(tmp_path)},
    )
    compiled(torch.ones(2, dtype=torch.bfloat16))
    (path,) = tmp_path.rglob("*.OUTPUT.0.*.npy")
    assert np.load(path).dtype == np.float32
