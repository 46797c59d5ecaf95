"""With `memory_efficiency`, what a run needs is there while it runs, and not behind it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.compile import compile_fn, watching
from tests.support.simulated_device import SimulatedDevice
from torchair.backend.settings.settings import KEEPS_MEMORY, PATIENCE

OPTION = "experimental_config.memory_efficiency"
X, W = torch.randn(3, 4), torch.randn(4, 4)


def work(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).relu().sin() @ w


class Storages(TorchDispatchMode):
    """All memory that ops make in here, as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.live: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, tuple | list) else (made,):
            if isinstance(value, torch.Tensor):
                self.live.add(value)
        return made


@contextmanager
def storages() -> Iterator[Storages]:
    with Storages() as made:
        yield made
    gc.collect()


@pytest.mark.parametrize("training", [False, True])
def test_nothing_stays_between_calls(training: bool, row: SimulatedDevice) -> None:
    """Where a device has graphs, graph mode would record, and recordings keep their memory."""
    kept = {}
    for value in (True, False):
        torch.compiler.reset()
        before, alive = row.records, row.live
        x = X.clone().requires_grad_(training)
        with watching() as seen, torch.set_grad_enabled(training):
            run = compile_fn(work, {OPTION: value}, dynamic=False)
            for _ in range(PATIENCE + 3):
                made = run(x, W)
                if training:
                    made.sum().backward()
        torch.testing.assert_close(made, work(x, W))
        kept[value] = (row.records - before, row.live - alive)
        reports = [runner.report() for runner in seen.runners]
        assert all((report.why_not == KEEPS_MEMORY) == value for report in reports)
        assert all(bool(report.recordings) != value for report in reports)
    assert kept[True] == (0, 0)
    assert min(kept[False]) > 0


@pytest.mark.parametrize("codegen", ["eager", "reference"])
def test_no_tensor_outlives_a_run(codegen: str) -> None:
    """On the CPU nothing but the results is left of a call."""
    with torch.no_grad():
        run = compile_fn(work, {OPTION: True, "engine_config.codegen": codegen}, dynamic=False)
        run(X, W)
        with storages() as made:
            result = run(X, W)
            assert len(made.live) <= 1
        del result
        gc.collect()
        assert not made.live
