"""What `explain` says of rules, and where they are looked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._inductor.pattern_matcher import joint_fwd_bwd

import torchair
from tests.passes.graphs import calls, traced
from tests.passes.pattern_rules import separate_sets, why
from torchair.passes.patterns.sets.registry import apply_pattern_passes

register = torchair.register_replacement
T = torch.ones(2, 4)
X, Y = torch.randn(3, 5), torch.randn(3, 5)

own_sets = pytest.fixture(autouse=True)(separate_sets)


def test_what_another_rule_has_put() -> None:
    register(lambda x, y: torch.relu(x + y), lambda x, y: torch.relu(x - -y), (T, T))
    register(lambda x, y: torch.relu(x + y) * 2, lambda x, y: 2 * torch.relu(y + x), (T, T))
    gm, ctx = traced(lambda x, y: torch.relu(x + y) * 2, X, Y)
    ctx.explains = True
    assert apply_pattern_passes(gm, ctx) == 1
    assert [rule.fired for rule in ctx.rules] == [0, 1]
    assert ctx.rules[0].why.startswith("other rules have replaced what it looks for; it matches their")


def test_complex_values_are_passed_by() -> None:
    register(lambda x, y: torch.exp(x + y), lambda x, y: torch.exp(y + x), (T, T))
    assert "a value is complex" in why(lambda x, y: torch.exp(x + y), X.to(torch.complex64), Y)


def test_a_pattern_of_forward_and_backward_together() -> None:
    a = torch.ones(4, 4, requires_grad=True)
    register(
        lambda a, b: torch.relu(a @ b),
        lambda a, b: torch.relu(torch.mm(a, b)),
        (a, a),
        trace_fn=joint_fwd_bwd,
    )
    square = torch.randn(4, 4)
    assert "traces forward and backward together" in why(lambda x, y: torch.relu(x @ y), square, square)


# Branches


def branch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)


def put(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(x > -y, x - -y, 0)


def chosen(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, branch, lambda x, y: x - y, (x, y))


def test_patterns_in_branches() -> None:
    register(branch, put, (T, T))
    gm, ctx = traced(chosen, X, Y)
    assert apply_pattern_passes(gm, ctx) == 1
    assert "aten.relu.default" not in calls(gm.true_graph_0)
    for x in (X.abs(), -X.abs()):
        torch.testing.assert_close(gm(x, Y), chosen(x, Y))


def test_why_not_in_a_branch() -> None:
    register(lambda x, y: torch.relu(x * y), lambda x, y: torch.relu(y * x), (T, T))
    assert why(chosen, X, Y).startswith("found add (aten.add.Tensor), expected aten.mul.Tensor")


def test_a_branch_returns_what_lies_as_before() -> None:
    register(lambda x: (x + 1).t(), lambda x: x.t().contiguous() + 1, [T])
    gm, ctx = traced(lambda x: torch.cond(x.sum() > 0, lambda x: (x + 1).t(), lambda x: x.t() - 1, (x,)), X)
    assert apply_pattern_passes(gm, ctx) == 1
    assert gm(X.abs()).stride() == (X.abs() + 1).t().stride()


@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
def test_branches_of_compiled_functions(mode: str) -> None:
    register(branch, put, (T, T))
    config = torchair.CompilerConfig()
    config.mode = mode
    (rule,) = torchair.explain(chosen, X, Y, compiler_config=config).rules
    assert rule.fired == 1
    compiled = torch.compile(chosen, backend=torchair.get_npu_backend(compiler_config=config))
    for x in (X.abs(), -X.abs()):
        torch.testing.assert_close(compiled(x, Y), chosen(x, Y))
