"""Results share memory with arguments only where FX says so, and keep their values when one is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.convert.harness import converted
from torchair.core.torch_private.compilers.inductor import select_decomp_table
from torchair.engine.interpret import interpret
from torchair.engine.lower import lower

FRESH = {
    "clone": lambda x: x.clone(),
    "part": lambda x: x[1:].clone(),
    "cat": lambda x: torch.cat([x]),
    "flip": lambda x: x.flip([]),
    "whole_slice": lambda x: torch.zeros(3, 4).slice_scatter(x, 0, 0, 3),
    "sum": lambda x: x[0, 0].sum(),
    "max": lambda x: x[0, 0].max(0)[0],
    "repeat": lambda x: x.repeat(1, 1),
}


def runs(fn: Callable[..., torch.Tensor], x: torch.Tensor) -> list[Callable[..., list[torch.Tensor]]]:
    """The reference run and the lowered graph of a function."""
    graph, _, gm, fake_mode = converted(fn, (x,))
    placeholders = [(node.name, node.meta["val"]) for node in gm.graph.nodes if node.op == "placeholder"]
    lowered = lower(graph, placeholders, fake_mode, x.device, select_decomp_table())
    return [lambda x: interpret(graph, [x], x.device), lambda x: list(lowered(x))]


@pytest.mark.parametrize("row", FRESH)
def test_results_have_memory_of_their_own(row: str) -> None:
    for run in runs(FRESH[row], torch.randn(3, 4)):
        x = torch.randn(3, 4)
        (made,) = run(x)
        assert made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize("row", FRESH)
def test_results_are_made_before_the_argument_is_written(row: str) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = FRESH[row](x)
        x.add_(1)
        return y

    for run in runs(step, torch.randn(3, 4)):
        x = torch.randn(3, 4)
        expected, after = FRESH[row](x), x + 1
        (made,) = run(x)
        torch.testing.assert_close(made, expected)
        torch.testing.assert_close(x, after)


def test_two_results_do_not_share() -> None:
    for run in runs(lambda x: (y := x + 1, torch.cat([y])), torch.randn(3, 4)):
        first, second = run(torch.randn(3, 4))
        assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
