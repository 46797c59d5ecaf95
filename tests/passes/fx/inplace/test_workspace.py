"""Ops with scratch memory of their own: split where the library can, left alone elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.passes.graphs import calls, node, same_results, traced
from torchair.core.errors import BadGraph
from torchair.passes.fx.inplace import workspace
from torchair.passes.fx.inplace.workspace import Workspace, replace_dynamic_workspace_ops

X = torch.randn(3, 4)


@pytest.fixture
def scratch_ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An op of two results, the query for its scratch memory, and its `out` overload."""
    library = torch.library.Library("airscratch", "FRAGMENT")
    library.define("two(Tensor x, *, int factor=2) -> (Tensor, Tensor)")
    library.define("two.out(Tensor x, *, int factor=2, Tensor workspace, Tensor(a!)[] out) -> ()")
    library.define("two_max(Tensor x, *, int factor=2) -> Tensor")
    key = "CompositeExplicitAutograd"
    library.impl("two", lambda x, factor=2: (x * factor, x.sum(0)), key)
    library.impl("two.out", _two_out, key)
    library.impl("two_max", lambda x, factor=2: x.new_empty(16, dtype=torch.uint8), key)
    row = Workspace("airscratch.two_max.default", "airscratch.two.out", ("big", "small"))
    monkeypatch.setattr(workspace, "OPS", {"airscratch.two.default": row})
    yield torch.ops.airscratch
    library._destroy()


def _two_out(x: torch.Tensor, *, factor: int = 2, workspace: torch.Tensor, out: list[torch.Tensor]) -> None:
    assert workspace.numel() == 16
    out[0].copy_(x * factor)
    out[1].copy_(x.sum(0))


def use(x: torch.Tensor) -> torch.Tensor:
    big, small = torch.ops.airscratch.two(x, factor=3)
    return big + small


@pytest.mark.parametrize("tracing", ["fake", "symbolic"])
def test_scratch_and_results_are_allocated_by_the_graph(scratch_ops: Any, tracing: str) -> None:
    gm, ctx = traced(use, X, tracing=tracing)
    assert replace_dynamic_workspace_ops(gm, ctx) == 1
    names = [name for name in calls(gm) if "sym_size" not in name]
    assert names == [
        "airscratch.two_max.default",
        *["aten.empty.memory_format"] * 2,
        "airscratch.two.out",
        "aten.add.Tensor",
    ]
    call = node(gm, scratch_ops.two.out)
    assert call.kwargs["workspace"] is node(gm, scratch_ops.two_max.default)
    same_results(use, gm, X)


def test_workspace_without_overload_is_skipped_with_reason(
    scratch_ops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Workspace("airscratch.two_max.default", "airscratch.two.missing", ("big", "small"))
    monkeypatch.setattr(workspace, "OPS", {"airscratch.two.default": row})
    gm, ctx = traced(use, X)
    before = calls(gm)
    assert replace_dynamic_workspace_ops(gm, ctx) == 0
    assert calls(gm) == before
    assert ctx.skips[0].reason == "there is no airscratch.two.missing"


def test_another_number_of_results_is_an_error(scratch_ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Workspace("airscratch.two_max.default", "airscratch.two.out", ("big",))
    monkeypatch.setattr(workspace, "OPS", {"airscratch.two.default": row})
    gm, ctx = traced(use, X)
    with pytest.raises(BadGraph, match="returns 2 tensors, 1 are registered"):
        replace_dynamic_workspace_ops(gm, ctx)


def test_the_table_names_attention() -> None:
    assert all("infer_attention" in name for name in workspace.OPS)
    assert all(row.out.endswith(".out") for row in workspace.OPS.values())
