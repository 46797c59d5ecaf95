"""Which patterns of `register_replacement` are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._inductor.pattern_matcher import CallFunction, KeywordArg

import torchair
from tests.passes.pattern_rules import fires, separate_sets
from torchair.core.errors import BadPass
from torchair.passes.patterns.sets import registry

register = torchair.register_replacement
aten = torch.ops.aten
T = torch.ones(2, 4)
X = torch.randn(3, 5)

own_sets = pytest.fixture(autouse=True)(separate_sets)


def half(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 0.5)


def shifted(x: torch.Tensor, n: float) -> torch.Tensor:
    return torch.relu(x + n)


def added(inner: Any, *args: Any) -> Any:
    return CallFunction(aten.relu.default, CallFunction(inner, *args))


@pytest.mark.parametrize("skip_duplicates", [False, True])
def test_a_constant_is_no_wildcard(skip_duplicates: bool) -> None:
    register(half, lambda x: torch.relu(0.5 + x), [T])
    register(shifted, lambda x, n: torch.relu(n + x), [T, 0.5], skip_duplicates=skip_duplicates)
    assert len(registry.OF_TORCHAIR.of_users) == 2
    assert fires(lambda x: torch.relu(x + 0.7), X) == 1


def test_a_wildcard_is_the_same_with_any_example() -> None:
    register(shifted, lambda x, n: torch.relu(n + x), [T, 0.5])
    with pytest.raises(BadPass, match="already registered by shifted"):
        register(lambda n, x: torch.relu(x + n), lambda n, x: torch.relu(n + x), [0.25, T])
    register(lambda x, y: torch.relu(x + y), lambda x, y: torch.relu(y + x), [T, T])
    assert len(registry.OF_TORCHAIR.of_users) == 2


def test_a_traced_pattern_and_one_that_is_given() -> None:
    register(lambda a, b: torch.relu(a + b), lambda a, b: torch.relu(b + a), (T, T))
    pattern = added(aten.add.Tensor, KeywordArg("p"), KeywordArg("q"))
    with pytest.raises(BadPass, match="already registered"):
        register(lambda p, q: None, lambda p, q: torch.relu(q + p), (T, T), search_fn_pattern=pattern)
    register(
        lambda p, q: None,
        lambda p, q: torch.relu(q + p),
        (T, 0.5),
        search_fn_pattern=added(aten.add.Tensor, KeywordArg("p"), KeywordArg("q")),
    )
    with pytest.raises(BadPass, match="already registered"):
        register(shifted, lambda x, n: torch.relu(n + x), [T, 0.25])
    assert len(registry.OF_TORCHAIR.of_users) == 2


def test_one_value_twice_is_not_two_values() -> None:
    register(lambda a, b: torch.relu(a + b), lambda a, b: torch.relu(b + a), (T, T))
    register(lambda a: torch.relu(a + a), lambda a: torch.relu(2 * a), [T])
    assert len(registry.OF_TORCHAIR.of_users) == 2
