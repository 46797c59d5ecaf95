"""What is kept out of Python's search for garbage, and for how long."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torchair
from torchair.core.gc_control import NEVER, gc_paused, older_left_alone


@pytest.fixture(autouse=True)
def nothing_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_no_full_collection_meanwhile() -> None:
    before = gc.get_threshold()
    with contextlib.suppress(KeyError), older_left_alone(), older_left_alone():
        assert gc.get_threshold() == (*before[:2], NEVER)
        raise KeyError
    assert gc.get_threshold() == before


def test_threads_that_overlap_leave_the_threshold_as_it_was() -> None:
    before = gc.get_threshold()
    first, second = older_left_alone(), older_left_alone()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[2] == NEVER
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_a_threshold_that_is_set_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with older_left_alone():
            gc.set_threshold(*before[:2], before[2] + 1)
        assert gc.get_threshold()[2] == before[2] + 1
    finally:
        gc.set_threshold(*before)


def test_young_objects_stay_young() -> None:
    """Dynamo collects young objects after each compile: what it has left is among them."""
    gc.collect()
    made = [object() for _ in range(3)] + [[]]
    with older_left_alone():
        pass
    assert any(each is made for each in gc.get_objects(generation=0))


@contextlib.contextmanager
def collected_by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("backend", "grad"), [("npu", False), ("npugraph_ex", False), ("get_npu_backend", True)]
)
def test_parameters_can_be_swapped_after_a_compile(backend: str, grad: bool) -> None:
    """Nothing holds weak references to them: no fake mode in a cycle that only a full collection ends."""
    model = torch.nn.LayerNorm(8)
    kind: Any = torchair.get_npu_backend() if backend == "get_npu_backend" else backend
    run = torch.compile(model, backend=kind, options={"codegen": "eager"}, dynamic=True)
    with collected_by_hand(), torch.set_grad_enabled(grad):
        for rows in (2, 3):
            made = run(torch.randn(rows, 8))
            if grad:
                made.sum().backward()
        del made
        model.zero_grad()
        torch.utils.swap_tensors(model.weight, torch.nn.Parameter(torch.full((8,), 2.0)))
        try:
            torch.__future__.set_swap_module_params_on_conversion(True)
            model.load_state_dict({"weight": torch.full((8,), 3.0), "bias": torch.ones(8)})
            model.to(torch.float64)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        x = torch.randn(2, 8, dtype=torch.float64)
        torch.testing.assert_close(run(x), model(x))


@pytest.mark.parametrize("was_on", [True, False])
def test_the_search_is_on_or_off_as_before(was_on: bool) -> None:
    try:
        if not was_on:
            gc.disable()
        with gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
