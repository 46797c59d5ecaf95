"""Graph mode uses the memory of the first call's inputs as buffers, but only what nobody else can see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._functorch.aot_autograd import aot_function

import torchair
from tests.support.simulated_device import SimulatedDevice
from torchair.core.diagnostics import DegradedWarning

BACKENDS = {"npu": {}, "npugraph_ex": {"clone_input": False}}


def compile_by_name(fn: Callable[..., Any], backend: str) -> Callable[..., Any]:
    return torch.compile(fn, backend=backend, options=BACKENDS[backend] or None)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def view_and_add(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.view(2, 2), y + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [add, view_and_add])
@pytest.mark.parametrize("starts", [(0, 2), (2, 0), (0, 0)])
def test_inputs_that_overlap_in_the_recorded_call(
    fn: Callable[..., Any], starts: tuple[int, int], backend: str, row: SimulatedDevice
) -> None:
    run = compile_by_name(fn, backend)
    with torch.no_grad():
        for turn in range(4):
            base = torch.randn(8)
            x, y = (base[start : start + 4] for start in starts)
            if turn % 2:
                x, y = x.clone(), y.clone()
            del base
            torch.testing.assert_close(run(x, y), fn(x, y))
    assert row.records > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("holder", ["numpy", "dlpack", "storage", "nobody"])
def test_memory_that_somebody_holds_is_not_written(holder: str, backend: str, row: SimulatedDevice) -> None:
    run = compile_by_name(lambda x: x + 1, backend)
    x = torch.zeros(4)
    kept: Any = None
    if holder == "numpy":
        kept = np.zeros(4, np.float32)
        x = torch.from_numpy(kept)
    elif holder == "dlpack":
        kept = np.zeros(4, np.float32)
        x = torch.from_dlpack(kept)
    elif holder == "storage":
        kept = x.untyped_storage()
    with torch.no_grad():
        run(x)
        del x
        for number in (7.0, 8.0):
            assert run(torch.full((4,), number)).tolist() == [number + 1] * 4
    assert row.records > 0
    if holder == "storage":
        kept = torch.empty(0).set_(kept)
    if kept is not None:
        assert kept.tolist() == [0.0] * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_are_negated_or_conjugated_on_reading(backend: str, row: SimulatedDevice) -> None:
    run = compile_by_name(lambda x: x * 2, backend)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(4, dtype=torch.complex64).conj().imag
            torch.testing.assert_close(run(x), x * 2)
    assert row.records > 0


def test_no_borrowing_does_not_stop_recording(row: SimulatedDevice) -> None:
    config = torchair.CompilerConfig()
    run = torch.compile(add, backend=torchair.get_npu_backend(compiler_config=config))
    base = torch.randn(8)
    with torch.no_grad():
        for _ in range(5):
            run(base[:4], base[2:6])
    assert row.replays >= 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_that_was_given_back_is_neither_read_nor_written(backend: str, row: SimulatedDevice) -> None:
    run = compile_by_name(lambda x: x + 1, backend)
    x = torch.zeros(4)
    with torch.no_grad():
        for _ in range(3):
            run(x)
        size = x.untyped_storage().nbytes()
        x.untyped_storage().resize_(0)
        held = torch.zeros(4)  # where x was
        x.untyped_storage().resize_(size)
        x.fill_(5.0)
        for _ in range(3):
            assert run(x).tolist() == [6.0] * 4
        x.untyped_storage().resize_(0)
        del x
        for number in (7.0, 8.0):
            assert run(torch.full((4,), number)).tolist() == [number + 1] * 4
    assert held.tolist() == [0.0] * 4
    assert row.replays > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("part", ["whole", "imag"])
def test_views_of_what_is_negated_or_conjugated_on_reading(
    part: str, backend: str, row: SimulatedDevice
) -> None:
    """Views of the buffer would not be so."""
    run = compile_by_name(lambda x: (x.t(), x * 2), backend)

    def call() -> None:
        x = torch.randn(4, 4, dtype=torch.complex64).conj()
        x = x if part == "whole" else x.imag
        view, product = run(x)
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        torch.testing.assert_close(view, x.t())
        torch.testing.assert_close(product, x * 2)

    with torch.no_grad():
        with pytest.warns(DegradedWarning, match="a view of input x, which is conjugated or negated"):
            call()
        for _ in range(3):
            call()
    assert row.records == 0


def test_what_comes_unchecked_is_not_read_where_it_lies(row: SimulatedDevice) -> None:
    """Another view may begin at the same place."""
    made = aot_function(add, fw_compiler=torchair.get_compiler(), keep_inference_input_mutations=True)
    x, y = torch.arange(16.0).view(4, 4), torch.ones(4, 4)
    with torch.no_grad():
        for given in (x, x, x, x.t(), torch._neg_view(x), x[0].expand(4, 4), x):
            torch.testing.assert_close(made(given, y), given + y)
    assert row.replays > 0
