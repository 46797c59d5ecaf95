"""What happens around passes: switches, order, errors, the verifier between steps."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import pytest
import torch
from torch import fx

from torchair.core.errors import BadPass
from torchair.core.log import capture_logger, logger
from torchair.passes.pass_manager import PassContext, Step, run, steps


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


def test_quiet_steps_are_shown_only_when_they_changed_something() -> None:
    def idle(graph: list[str], ctx: PassContext) -> int:
        return 0

    seen: list[str] = []
    ctx = PassContext(observe=lambda name, graph: seen.append(name))
    run(steps(Step(idle), Step(idle, name="quiet", quiet=True), Step(first, quiet=True)), [], ctx)
    assert seen == ["idle", "first"]


def negate_again(gm: fx.GraphModule, ctx: PassContext) -> int:
    """sin -> neg(cos)"""
    (sin,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    with gm.graph.inserting_before(sin):
        cos = gm.graph.call_function(torch.ops.aten.cos.default, sin.args)
        neg = gm.graph.call_function(torch.ops.aten.neg.default, (cos,))
    sin.replace_all_uses_with(neg)
    gm.graph.erase_node(sin)
    return 1


@pytest.mark.parametrize(("captures", "log"), [(True, capture_logger), (False, logger)])
def test_pass_manager_logs_changes_at_debug(
    captures: bool, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    gm = fx.symbolic_trace(lambda x: torch.ops.aten.sin.default(x))
    ctx = PassContext(switches={"captures": captures})
    log.setLevel(logging.DEBUG)
    try:
        run(steps(Step(negate_again)), gm, ctx)
        run(steps(), gm, ctx)
    finally:
        log.setLevel(logging.ERROR)
    said = capsys.readouterr().out
    changes = """3 -> 4 nodes
  added: cos_default, neg_default
  removed: sin_default
  op             before  after
  call_function  1       2
  target            before  after
  aten.cos.default  0       1
  aten.neg.default  0       1
  aten.sin.default  1       0
"""
    assert re.search(rf"pass negate_again: 1 changes in [\d.]+ ms, {re.escape(changes)}", said)
    # The second list of passes is told about the whole way of the graph.
    assert said.count(f"all passes so far: {changes}") == 2


def test_pass_manager_without_debug_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Any) -> None:
        raise AssertionError("counted")

    monkeypatch.setattr(sys.modules["torchair.passes.pass_manager"], "census", fail)
    assert run(steps(Step(first)), [], PassContext()) == ["first"]
