"""`torchair.explain`: what became of the user's replacements of patterns, and each reason why one did not
fire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import npugraph_ex
import torchair
from tests.support.compile import compile_fn, make_config
from torchair.backend.cache import key
from torchair.backend.cache.key import CompileArgs, facts_of
from torchair.backend.diagnose.explain import RuleFacts
from torchair.core.errors import NotPossible
from torchair.core.log import capture_logger, logger
from torchair.core.registries.user_registrations import EXTENSIONS
from torchair.passes.patterns.sets import registry

T, X, Y = torch.ones(2, 4), torch.randn(3, 5), torch.randn(3, 5)
MODES = ("max-autotune", "npugraph_ex")


@pytest.fixture(autouse=True)
def own_sets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rules of one test are no other's."""
    known, own = dict(EXTENSIONS), registry.RuleSet("npugraph_ex", "npugraph_ex.register_replacement")
    monkeypatch.setattr(
        registry, "OF_TORCHAIR", registry.RuleSet("torchair", "torchair.register_replacement")
    )
    monkeypatch.setattr(registry, "OF_CAPTURE", own)
    monkeypatch.setattr("torchair.npugraph_ex.patterns.OF_CAPTURE", own)
    EXTENSIONS.clear()
    yield
    EXTENSIONS.clear()
    EXTENSIONS.update(known)


def add_exp(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.exp(a + b)


def apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.exp(a) * torch.exp(b)


def rules(fn: Callable[..., Any], *args: Any, config: Any = None) -> list[RuleFacts]:
    return torchair.explain(fn, *args, compiler_config=config).rules


def shared(x: torch.Tensor, y: torch.Tensor) -> Any:
    total = x + y
    return torch.exp(total), total.sin()


CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "fired": (lambda x, y: (torch.exp(x + y), torch.exp(y + x)), ""),
    "no_anchor": (lambda x, y: x + y, "no aten.exp.default in the graph, with which the pattern ends"),
    "another_op": (
        lambda x, y: torch.exp(x - y),
        "found sub (aten.sub.Tensor), expected aten.add.Tensor; the nearest match has 1 of 2 calls",
    ),
    "an_input": (lambda x, y: torch.exp(x) + y, "found arg0_1 (placeholder), expected aten.add.Tensor"),
    "shared": (shared, "add is used elsewhere: exp, sin read it, the pattern has 1"),
    "argument": (
        lambda x, y: torch.exp(torch.add(x, y, alpha=3)),
        "has alpha=3, and the pattern has no alpha",
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_explain_gives_reason_for_each_pattern(name: str, mode: str) -> None:
    fn, why = CASES[name]
    torchair.register_replacement(add_exp, apart, (T, T))
    (found,) = rules(fn, X, Y, config=make_config(mode=mode, codegen="auto"))
    assert found.rule == f"add_exp (test_explain.py:{add_exp.__code__.co_firstlineno})"
    assert found.fired == (2 if name == "fired" else 0)
    assert why in found.why
    assert bool(found.why) == bool(why)
    if name not in ("fired", "no_anchor", "an_input"):
        assert Path(__file__).name in found.source


def test_explanation_prints_as_text() -> None:
    torchair.register_replacement(add_exp, apart, (T, T))
    text = str(torchair.explain(lambda x, y: torch.exp(x - y), X, Y))
    assert "Replacements of patterns" in text
    assert "add_exp" in text
    assert "test_explain.py" in text
    assert "aten.sub.Tensor" in text.replace("\n", "")


def test_who_has_no_rules_reads_nothing_of_them() -> None:
    assert "Replacements" not in str(torchair.explain(torch.exp, X))


def test_explain_reports_failed_check() -> None:
    torchair.register_replacement(add_exp, apart, (T, T), extra_check=lambda match: False)
    (found,) = rules(lambda x, y: (torch.exp(x + y), torch.exp(y + x)), X, Y)
    assert found.why == "extra_check said no (2 times)"
    assert "test_explain.py" in found.source


def test_explain_names_the_constant_that_differs() -> None:
    torchair.register_replacement(lambda a: torch.exp(a + 1), lambda a: torch.exp(a) * torch.e, [T])
    (found,) = rules(lambda x: torch.exp(x + 2), X)
    assert found.why.startswith("add has 2, expected 1")


def test_an_output_that_is_not_used() -> None:
    torchair.register_replacement(
        lambda a: (torch.exp(a), torch.sin(a)), lambda a: (a.exp() * 1, a.sin() * 1), [T]
    )
    (found,) = rules(lambda x: x.exp(), X)
    assert found.why.startswith("an output of the pattern is not used: no aten.sin.default in the graph")


def test_streams_that_differ() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x + y
        with torchair.scope.npu_stream_switch("side"):
            return torch.exp(total)

    torchair.register_replacement(add_exp, apart, (T, T))
    (found,) = rules(fn, X, Y)
    assert "stream of add is None, of exp 'side'" in found.why


def test_a_replacement_that_gives_something_else() -> None:
    torchair.register_replacement(lambda a: torch.exp(a), lambda a: torch.exp(a)[:2] * 1, [T])
    (found,) = rules(lambda x: torch.exp(x), X)
    assert "float32[2, 5] on cpu, that of the pattern float32[3, 5] on cpu" in found.why


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"experimental_config.pattern_fusion_pass": False}, "switched off: pattern_fusion_pass=False"),
        ({"ge_config.optimization_switch": "add_exp:off"}, "switched off by name (add_exp:off)"),
        ({"ge_config.optimization_switch": "apply_pattern_passes:off"}, "apply_pattern_passes:off"),
        ({"ge_config.oo_level": "O1"}, "switched off with all fusions"),
    ],
)
def test_explain_names_the_option_that_disables_a_rule(options: dict[str, Any], why: str) -> None:
    torchair.register_replacement(add_exp, apart, (T, T))
    (found,) = rules(add_exp, X, Y, config=make_config(options, codegen="auto"))
    assert found.fired == 0
    assert why in found.why


def test_taken_by_another_rule() -> None:
    torchair.register_replacement(add_exp, apart, (T, T))
    torchair.register_replacement(lambda a: a + 1, lambda a: a - (-1), [T])
    first, second = rules(add_exp, X, Y)
    assert first.fired == 1
    assert second.why == "other rules have replaced what it looks for"


def test_rules_of_the_other_package() -> None:
    npugraph_ex.register_replacement(add_exp, apart, (T, T))
    (found,) = rules(add_exp, X, Y)
    assert "registered with npugraph_ex.register_replacement" in found.why
    (found,) = rules(add_exp, X, Y, config=npugraph_ex.CompilerConfig())
    assert found.fired == 1
    torchair.register_replacement(add_exp, apart, (T, T))
    assert len(rules(add_exp, X, Y)) == 1  # it is in both


# Compiles


@pytest.mark.parametrize(("mode", "log"), [(MODES[0], logger), (MODES[1], capture_logger)])
def test_a_rule_that_does_not_fire_is_one_line(
    mode: str, log: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    torchair.register_replacement(add_exp, apart, (T, T))
    log.setLevel(logging.INFO)
    try:
        compile_fn(lambda x, y: torch.exp(x - y), mode=mode)(X, Y)
    finally:
        log.setLevel(logging.ERROR)
    lines = [line for line in capsys.readouterr().out.splitlines() if "the replacement add_exp" in line]
    assert len(lines) == 1
    assert "[INFO]" in lines[0]
    assert "did not fire: found sub (aten.sub.Tensor)" in lines[0]


RAN: list[str] = []


@torch.library.custom_op("explained::silu_back", mutates_args=())
def silu_back(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    RAN.append("backward")
    return torch.ops.aten.silu_backward(gradient, x)


silu_back.register_fake(lambda gradient, x: torch.empty_like(x))


def test_rule_fires_in_backward_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward are two graphs; a rule fires in either."""
    torchair.register_replacement(
        lambda g, x: torch.ops.aten.silu_backward(g, x), lambda g, x: silu_back(g, x), (T, T)
    )
    seen: list[Any] = []
    torchair.register_replacement(
        lambda x: torch.nn.functional.silu(x), lambda x: x * torch.sigmoid(x), [T],
        extra_check=lambda match: seen.append(match) is None,
    )  # fmt: skip
    ours, theirs = (X.clone().requires_grad_() for _ in range(2))
    RAN.clear()
    compile_fn(lambda x: torch.nn.functional.silu(x).sum(), mode=MODES[1])(ours).backward()
    torch.nn.functional.silu(theirs).sum().backward()
    assert RAN == ["backward"]
    assert len(seen) == 1
    torch.testing.assert_close(ours.grad, theirs.grad)


class Scaled(nn.Module):
    """A number that a module keeps; `dynamic=True` makes a tensor of it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * self.scale)


def test_numbers_of_modules_are_found_when_sizes_are_dynamic() -> None:
    seen: list[float] = []

    def put(x: torch.Tensor, n: float) -> torch.Tensor:
        seen.append(n)
        return torch.exp(x) ** n

    torchair.register_replacement(lambda x, n: torch.exp(x * n), put, [T, 7.25])
    seen.clear()
    model = Scaled(0.5)
    fn = compile_fn(model, dynamic=True)
    for scale in (0.5, 1.5):
        model.scale = scale
        torch.testing.assert_close(fn(X), torch.exp(X * scale))
    assert set(seen) == {0.5, 1.5}


def test_a_rule_that_comes_later_acts_in_the_next_compile() -> None:
    ran: list[int] = []

    def put(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return apart(a, b)

    torch.testing.assert_close(compile_fn(add_exp)(X, Y), add_exp(X, Y))
    torchair.register_replacement(add_exp, put, (T, T))
    ran.clear()
    torch._dynamo.reset()
    torch.testing.assert_close(compile_fn(add_exp)(X, Y), add_exp(X, Y))
    assert ran


# Caches


def rule(limit: int, value: float = 1.0, default: int = 0) -> tuple[Any, Any, Any]:
    """Three functions whose code is always the same."""

    def find(a: torch.Tensor) -> torch.Tensor:
        return torch.exp(a) + value

    def put(a: torch.Tensor, extra: int = default) -> torch.Tensor:
        return value + torch.exp(a) * 1

    return find, put, lambda match: limit > 1


def key_with(functions: tuple[Any, Any, Any]) -> str:
    """The part of a cache's key that knows of rules."""
    find, put, check = functions
    EXTENSIONS.clear()
    registry.OF_TORCHAIR = registry.RuleSet("torchair", "")
    torchair.register_replacement(find, put, [T], extra_check=check)
    return facts_of(nn.Linear(2, 2), "forward", CompileArgs(torchair.CompilerConfig()))["extensions"]


def test_a_rule_is_part_of_the_key() -> None:
    EXTENSIONS.clear()
    without = facts_of(nn.Linear(2, 2), "forward", CompileArgs(torchair.CompilerConfig()))["extensions"]
    keys = [
        without,
        key_with(rule(1)),
        key_with(rule(2)),
        key_with(rule(1, 2.0)),
        key_with(rule(1, default=3)),
    ]
    assert len(set(keys)) == len(keys)
    assert key_with(rule(1)) == keys[1]
    find, put, _ = rule(1)
    assert key_with((find, put, lambda match: True)) not in keys


def test_rules_of_one_name_are_all_part_of_the_key() -> None:
    torchair.register_replacement(lambda a: torch.exp(a) + 1, lambda a: 1 + torch.exp(a) * 1, [T])
    torchair.register_replacement(lambda a: torch.exp(a) + 2, lambda a: 2 + torch.exp(a) * 1, [T])
    assert len(EXTENSIONS) == 2


def test_what_is_no_data_is_in_no_key() -> None:
    held = object()
    with pytest.raises(NotPossible, match="is no data"):
        key_with((lambda a: torch.exp(a) + 1, lambda a: 1 + torch.exp(a) * 1, lambda match: held is not None))
    assert key.EXTENSIONS is EXTENSIONS
