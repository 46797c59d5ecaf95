"""What happens around passes: switches, order, errors, the verifier between steps."""

from __future__ import annotations

from typing import Any

import pytest

from torchair.core.errors import BadPass
from torchair.passes.run import PassContext, Step, run, steps


def first(graph: list[str], ctx: PassContext) -> int:
    """Adds a word."""
    graph.append("first")
    return 1


def second(graph: list[str], ctx: PassContext) -> int:
    """Adds another, and says what it left."""
    graph.append("second")
    ctx.skip("node", "no reason")
    return 2


def test_order_switches_and_counts() -> None:
    ctx = PassContext(switches={"a": False, "b": True})
    listed = steps(Step(first, on="a"), Step(first, on="other"), Step(second), Step(first, unless="b"))
    assert run(listed, [], ctx) == ["first", "second"]
    assert ctx.changes == {"first": 1, "second": 2}
    assert [(skip.step, skip.reason) for skip in ctx.skips] == [("second", "no reason")]


def test_a_wrong_order_fails_at_import() -> None:
    with pytest.raises(AssertionError, match="second must come after"):
        steps(Step(second, after=(first,)), Step(first))


def test_an_error_names_the_pass() -> None:
    def broken(graph: Any, ctx: PassContext) -> int:
        raise KeyError("x")

    with pytest.raises(BadPass, match="the pass broken failed"):
        run(steps(Step(broken)), [], PassContext())


def test_the_verifier_and_the_observer_see_every_step() -> None:
    seen: list[str] = []
    ctx = PassContext(observe=lambda name, graph: seen.append(name), verify=lambda graph: seen.append("ok"))
    run(steps(Step(first), Step(second)), [], ctx)
    assert seen == ["ok", "first", "ok", "second"]
