"""as_strided counts from the start of a storage, and a copy has another storage than what it was made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import torchair
from tests.support.compile import compile_fn
from torchair.codegen.base import graph_prep


def written(x: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    window = copy.as_strided((2,), (1,), 0)
    copy[:] = copy
    return window + 0


def written_in_part(x: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    window = copy.as_strided((2,), (1,), 0)
    copy[:1] = 5
    return window + 0


def through_views(x: torch.Tensor) -> torch.Tensor:
    view = x.clone().view(-1)
    view[0] = 3
    return view.as_strided((1,), (1,), 1)


def scattered(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x.clone(), x.new_ones(1), (1,), (1,), 0)


def selected(x: torch.Tensor) -> torch.Tensor:
    return torch.select_scatter(x.clone(), x.new_ones(()), 0, 1).as_strided((2,), (1,), 0)


def of_the_storage(x: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x, x.new_ones(1), 0, 0, 1).as_strided((2,), (1,), 0)


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
@pytest.mark.parametrize("fn", [written, written_in_part, through_views, scattered, selected, of_the_storage])
def test_window_reads_the_storage_that_it_names(fn: Callable[..., torch.Tensor], mode: str) -> None:
    memory = torch.arange(16.0)
    run = compile_fn(fn, mode=mode, dynamic=False)
    for offset in (11, 11, 0, 5):
        part = memory.as_strided((2,), (1,), offset)
        assert torch.equal(run(part), fn(part))


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_window_of_a_copied_storage_is_not_given_to_inductor(mode: str) -> None:
    part = torch.arange(16.0).as_strided((2,), (1,), 11)
    run = compile_fn(of_the_storage, mode=mode, codegen="inductor", dynamic=False)
    with pytest.warns(torchair.DegradedWarning, match="the whole storage of a copied input"):
        assert torch.equal(run(part), of_the_storage(part))
    assert torch.equal(run(part), of_the_storage(part))


def of_zero_dims(x: torch.Tensor) -> torch.Tensor:
    """Unfold of a tensor without dims is a window without an offset."""
    return torch.cat([x.select(-1, 1).unfold(0, 1, 1), x])


def of_repeated_elements(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2, 2), (2, 0), 4).reshape(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize(
    ("fn", "mode"), [(of_zero_dims, "max-autotune"), (of_repeated_elements, "npugraph_ex")]
)
def test_windows_in_older_versions_of_inductor(
    fn: Callable[..., torch.Tensor], mode: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They mistake the offset of a window, unless it is stated and its input begins at its storage."""
    monkeypatch.setattr(graph_prep, "rebases_windows", lambda: False)
    memory = torch.arange(20.0).to(dtype)
    run = compile_fn(fn, mode=mode, codegen="inductor", dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="(?s).*storage of input", category=torchair.DegradedWarning)
        assert torch.equal(run(memory[:8]), fn(memory[:8]))
    torch._dynamo.reset()
    run = compile_fn(fn, mode=mode, codegen="inductor", dynamic=False)
    with pytest.warns(torchair.DegradedWarning, match="input arg0_1, whose storage offset is not 0"):
        assert torch.equal(run(memory[8:16]), fn(memory[8:16]))
    assert torch.equal(run(memory[:8]), fn(memory[:8]))
