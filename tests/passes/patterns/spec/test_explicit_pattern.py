"""`search_fn_pattern`: checked as patterns are that come from a function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._inductor.pattern_matcher import Arg, CallFunction, Ignored, KeywordArg, ListOf

import torchair
from tests.passes.pattern_rules import fires, separate_sets, why
from torchair.core.errors import BadPass
from torchair.passes.patterns.sets import registry

register = torchair.register_replacement
aten = torch.ops.aten
T = torch.ones(2, 4)
X, Y = torch.randn(3, 5), torch.randn(3, 5)

own_sets = pytest.fixture(autouse=True)(separate_sets)


def relu_of(inner: Any, *args: Any) -> Any:
    return CallFunction(aten.relu.default, CallFunction(inner, *args))


def test_arguments_that_an_explicit_pattern_does_not_have() -> None:
    pattern = relu_of(aten.add.Tensor, KeywordArg("a"), KeywordArg("b"))
    register(lambda a, b: None, lambda a, b: torch.relu(b + a), (T, T), search_fn_pattern=pattern)
    assert fires(lambda x, y: torch.relu(x + y), X, Y) == 1
    assert "alpha=2" in why(lambda x, y: torch.relu(torch.add(x, y, alpha=2)), X, Y)


def test_kinds_of_values_of_an_explicit_pattern() -> None:
    pattern = relu_of(aten.mul.Tensor, KeywordArg("a"), KeywordArg("n"))
    scalars = {"n": 0.3}
    register(
        lambda a, n: None,
        lambda a, n: torch.relu(n * a),
        [T],
        search_fn_pattern=pattern,
        scalar_workaround=scalars,
    )
    assert fires(lambda x: torch.relu(x * 0.7), X) == 1
    assert "a number of the pattern is a tensor" in why(lambda x, y: torch.relu(x * y), X, Y)


def test_a_tensor_of_an_explicit_pattern_is_no_number() -> None:
    pattern = relu_of(aten.mul.Tensor, KeywordArg("a"), KeywordArg("b"))
    register(lambda a, b: None, lambda a, b: torch.relu(b * a), (T, T), search_fn_pattern=pattern)
    assert "a tensor of the pattern is 3 here" in why(lambda x: torch.relu(x * 3), X)


def test_constants_of_an_explicit_pattern() -> None:
    pattern = CallFunction(aten.sigmoid.default, CallFunction(aten.mul.Tensor, KeywordArg("a"), 2))
    register(lambda a: None, lambda a: torch.sigmoid(a + a), [T], search_fn_pattern=pattern)
    assert fires(lambda x: torch.sigmoid(x * 2.0), X) == 1
    whole = torch.tensor([100, 3], dtype=torch.int8)
    assert "mul has 2.0 (float), expected 2 (int)" in why(lambda x: torch.sigmoid(x * 2.0), whole)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((KeywordArg("q"), KeywordArg("b")), "without a"),
        ((KeywordArg("a"), Ignored()), "without b"),
        ((Arg(), Arg()), r"has an Arg\(\), which is a value without a name"),
    ],
)
def test_names_of_an_explicit_pattern(args: Any, text: str) -> None:
    with pytest.raises(BadPass, match=text):
        register(
            lambda a, b: None,
            lambda a, b: torch.relu(a + b),
            (T, T),
            search_fn_pattern=relu_of(aten.add.Tensor, *args),
        )
    assert registry.OF_TORCHAIR.of_users == []


def test_a_name_that_the_replacement_does_not_take() -> None:
    pattern = relu_of(aten.add.Tensor, KeywordArg("a"), KeywordArg("b"))
    with pytest.raises(BadPass, match="with b"):
        register(lambda a: None, lambda a: torch.relu(a), [T], search_fn_pattern=pattern)


def test_names_in_lists_of_an_explicit_pattern() -> None:
    pattern = relu_of(aten.cat.default, [KeywordArg("xs_0"), KeywordArg("xs_1")])
    register(
        lambda xs: None,
        lambda xs: torch.cat([torch.relu(x) for x in xs]),
        [[T, T]],
        search_fn_pattern=pattern,
    )
    assert fires(lambda x, y: torch.relu(torch.cat([x, y])), X, Y) == 1
    with pytest.raises(BadPass, match="without xs"):
        register(
            lambda xs: None,
            lambda xs: xs[0],
            [[T, T]],
            search_fn_pattern=relu_of(aten.cat.default, ListOf(KeywordArg("ys"))),
        )


def test_a_replacement_of_an_explicit_pattern_writes_no_argument() -> None:
    pattern = relu_of(aten.add.Tensor, KeywordArg("a"), KeywordArg("b"))
    with pytest.raises(BadPass, match="replace_fn of <lambda> writes its argument"):
        register(lambda a, b: None, lambda a, b: a.add_(b).relu(), (T, T), search_fn_pattern=pattern)
