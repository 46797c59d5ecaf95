"""Repeated ops take over values: sizes are right, memory is told apart where somebody asks, results are
eager's.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from tests.convert.harness import check, converted
from torchair.core.torch_private.compilers.inductor import select_decomp_table
from torchair.engine.lower import lower
from torchair.engine.trace_cache import memories

FORMS = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def lowered(fn: Any, args: list[torch.Tensor], dynamic: bool) -> fx.Graph:
    graph, _, gm, fake_mode = converted(fn, args, dynamic)
    placeholders = [(node.name, node.meta["val"]) for node in gm.graph.nodes if node.op == "placeholder"]
    made = lower(graph, placeholders, fake_mode, torch.device("cpu"), select_decomp_table())
    return made.graph


def calls(graph: fx.Graph, name: str) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function" and name in str(node.target)]


@FORMS
def test_values_of_repeats_are_objects_of_their_own(dynamic: bool) -> None:
    """A tracer knows tensors by identity: with one object for two, `a - b` would read the same one twice."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x.sin(), y.sin()) - y.sin()

    args = [torch.randn(2, 3), torch.randn(2, 3)]
    values = [node.meta["val"] for node in calls(lowered(fn, args, dynamic), "sin")]
    assert len(values) >= 2
    assert len({id(value) for value in values}) == len(values)
    check(fn, *args, dynamic=dynamic)


@FORMS
def test_what_is_returned_has_memory_of_its_own(dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second, third = x.sin(), y.sin(), (x + y).sin()
        return first, second.transpose(0, 1), third

    args = [torch.randn(2, 3), torch.randn(2, 3)]
    graph = lowered(fn, args, dynamic)
    returned = graph.output_node().args[0]
    assert len(set.union(*(memories(node) for node in returned))) == 3
    assert not calls(graph, "clone"), "nothing is copied for a memory that only looked shared"
    check(fn, *args, dynamic=dynamic)


@FORMS
def test_a_view_looks_at_its_own_base(dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).sin() + y.transpose(0, 1).sin()

    graph = lowered(fn, [torch.randn(2, 3), torch.randn(2, 3)], dynamic)
    views = calls(graph, "permute")
    assert len(views) == 2
    for view in views:
        (base,) = view.all_input_nodes[:1]
        assert memories(view) == memories(base)


@FORMS
def test_writes_see_their_own_memory(dynamic: bool) -> None:
    """Two caches updated alike: each index_put has its own value, so both can be made in place."""

    def fn(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        a.index_put_((at,), x.sin())
        b.index_put_((at,), x.cos())
        return a + b

    args = [torch.randn(4, 3), torch.randn(4, 3), torch.randn(2, 3), torch.tensor([0, 2])]
    puts = calls(lowered(fn, args, dynamic), "index_put")
    assert len(puts) == 2
    assert not memories(puts[0]) & memories(puts[1])
    check(fn, *args, dynamic=dynamic)


def test_ten_equal_layers() -> None:
    weights = [torch.randn(4, 4) for _ in range(10)]

    def fn(x: torch.Tensor, *layers: torch.Tensor) -> torch.Tensor:
        for weight in layers:
            x = (x @ weight.t()).view(-1, 2, 2).transpose(1, 2).reshape(-1, 4).tanh() + x
        return x

    check(fn, torch.randn(3, 4), *weights)
    check(fn, torch.randn(3, 4), *weights, dynamic=True)
