"""Memory that nobody has written is filled where deterministic algorithms are asked for, as in eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import deterministic


def unset(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of most ways to make such."""
    return (
        torch.empty(2, 3) + 0 * x.sum(),
        torch.empty(x.shape[0]),
        torch.empty(3, dtype=torch.int32),
        torch.empty(3, dtype=torch.bool),
        torch.empty(3, dtype=torch.bfloat16),
        torch.empty(3, dtype=torch.uint8),
        torch.empty(()),
        torch.empty_like(x),
        torch.empty_like(x, dtype=torch.int64),
        x.new_empty(5),
        torch.empty_strided((2, 3), (1, 2)),
        x.new_empty_strided((2, 3), (1, 2)),
        torch.empty_permuted((2, 3, 4), (1, 0, 2)),
        torch.arange(3).resize_(6),
    )


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """As they were."""
    yield
    torch.use_deterministic_algorithms(False)
    deterministic.fill_uninitialized_memory = True


def assert_filled(run: Callable[..., Any]) -> None:
    x = torch.randn(4, 4)
    torch.testing.assert_close(run(x), unset(x), equal_nan=True)


@pytest.mark.parametrize(
    ("backend", "codegen", "dynamic"),
    [("npu", "eager", None), ("npu", "reference", True), ("npugraph_ex", "eager", None)],
)
def test_what_is_unset_is_filled(backend: str, codegen: str, dynamic: bool | None) -> None:
    """Also where the graph was compiled while it was not."""
    run = torch.compile(unset, backend=backend, dynamic=dynamic, options={"codegen": codegen})
    run(torch.randn(4, 4))
    torch.use_deterministic_algorithms(True)
    deterministic.fill_uninitialized_memory = False
    run(torch.randn(4, 4))
    deterministic.fill_uninitialized_memory = True  # nothing guards this one
    assert_filled(run)
    torch.use_deterministic_algorithms(False)
    run(torch.randn(4, 4))
    torch.use_deterministic_algorithms(True)
    assert_filled(run)
