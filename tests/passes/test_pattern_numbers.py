"""Numbers in patterns: which of them stand for any, and which constants are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchair
from tests.passes.pattern_rules import fires, separate_sets
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


def test_a_wildcard_that_cannot_be_told_apart() -> None:
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
