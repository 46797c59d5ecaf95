"""Numbers in patterns: which of them stand for any, and which constants are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchair
from tests.passes.pattern_rules import fires, separate_sets, why
from torchair.core.errors import BadPass

register = torchair.register_replacement
T = torch.ones(2, 4)
X = torch.randn(3, 5)

own_sets = pytest.fixture(autouse=True)(separate_sets)


# Each: the pattern, an example of its number, where it is found and where not.
ELSEWHERE: dict[str, tuple[Callable[..., Any], float, Callable[..., Any], Callable[..., Any]]] = {
    "a constant": (
        lambda x, n: torch.relu(x.pow(2) * n),
        2,
        lambda x: torch.relu(x.pow(2) * 3),
        lambda x: torch.relu(x.pow(3) * 3),
    ),
    "a float constant": (
        lambda x, n: torch.exp(x * 0.5 + n),
        0.5,
        lambda x: torch.exp(x * 0.5 + 0.7),
        lambda x: torch.exp(x * 0.7 + 0.7),
    ),
    "a dim": (
        lambda x, n: torch.softmax(x + n, 1),
        1,
        lambda x: torch.softmax(x + 3, 1),
        lambda x: torch.softmax(x + 0, 0),
    ),
    "a flag": (
        lambda x, n: torch.relu(x.mean(-1, keepdim=True) + n),
        1,
        lambda x: torch.relu(x.mean(-1, keepdim=True) + 3),
        lambda x: torch.relu(x.mean(-1) + 0),
    ),
    "a wildcard that is a dim": (
        lambda x, n: torch.softmax(x, n) + 1,
        1,
        lambda x: torch.softmax(x, 0) + 1,
        lambda x: torch.softmax(x, 0) + 0.5,
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_wildcard_whose_example_stands_elsewhere_too(name: str) -> None:
    find, example, found, other = ELSEWHERE[name]
    register(find, lambda x, n: find(x, n).clone(), [T, example])
    assert fires(found, X) == 1
    assert fires(lambda x: find(x, example), X) == 1
    assert fires(other, X) == 0


def test_a_size_of_the_graph_that_is_as_the_example() -> None:
    def find(x: torch.Tensor, n: float) -> torch.Tensor:
        return torch.exp(x.reshape(-1) * n)

    register(find, lambda x, n: torch.exp(n * x.reshape(-1)), [T, 15])
    assert fires(lambda x: find(x, 3), X) == 1


def test_ambiguous_wildcard_is_refused() -> None:
    def find(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.relu(x.squeeze(n) if n == 0 else x) * (2 if n else 0)

    with pytest.raises(BadPass, match="the number n of the pattern find cannot be told from others"):
        register(find, find, [torch.ones(1, 4), 0])


@pytest.mark.parametrize(
    ("find", "example", "text"),
    [
        (lambda x, n: torch.relu(x), 0.3, "does not use n"),
        (lambda x, n: torch.relu(x) * 2, 2, "does not use n"),
        (lambda x, n: torch.relu(x) * (n * 2), 3, "does not use n"),
        (lambda x, n: torch.relu(x) * n, float("nan"), "is nan, which equals no number"),
    ],
)
def test_a_wildcard_that_no_match_would_tell(find: Any, example: float, text: str) -> None:
    with pytest.raises(BadPass, match=text):
        register(find, find, [T, example])
    with pytest.raises(BadPass, match=text):
        register(find, find, [T], scalar_workaround={"n": example})


# Constants


def test_a_float_is_no_whole_number_where_it_makes_another_dtype() -> None:
    register(lambda x: torch.sigmoid(x * 2), lambda x: torch.sigmoid(x + x), [T.to(torch.int8)])
    whole = torch.tensor([100, 3], dtype=torch.int8)
    assert fires(lambda x: torch.sigmoid(x * 2), whole) == 1
    assert "mul has 2.0 (float), expected 2 (int)" in why(lambda x: torch.sigmoid(x * 2.0), whole)
    assert fires(lambda x: torch.sigmoid(x * 2.0), X) == 1


def test_true_is_not_one_where_it_makes_another_dtype() -> None:
    register(lambda x: torch.neg((x + 1) + 1), lambda x: -2 - x, [torch.ones(4, dtype=torch.int64)])
    assert "add has True (bool)" in why(lambda x: torch.neg((x + True) + 1), torch.tensor([True, False]))


def test_zeros_have_a_sign() -> None:
    register(lambda x: torch.atan2(x, x) * 0.0, lambda x: x * 0.0, [T])
    assert fires(lambda x: torch.atan2(x, x) * 0.0, X.abs()) == 1
    assert "mul has -0.0, expected 0.0" in why(lambda x: 1 / (torch.atan2(x, x) * -0.0), X.abs())


def test_nan_is_found_nowhere() -> None:
    register(lambda x: (x + torch.nan).exp(), lambda x: torch.full_like(x, torch.nan), [T])
    assert "add has nan, which equals nothing" in why(lambda x: (x + torch.nan).exp(), X)
