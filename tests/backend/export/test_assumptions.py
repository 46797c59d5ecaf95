"""A graph is right only where all that tracing took for granted holds: other calls are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.backend.export.test_round_trip import check, exported
from torchair.backend.export.size_expr import evaluate, holds, names_in
from torchair.core.errors import BadCall, BadGraph, NotPossible


class Of(nn.Module):
    """A model that is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: Any = None, how: Any = 2.0) -> Any:
        return self.function(x, y, how)


X = torch.randn(4, 3)
# The model, what it is exported with, a call that is right, one that is not, and what is said.
CONSTANTS = {
    "left out": (lambda x, y, how: x * how, (X, None, 3.0), (X, None, 3.0), (X,), "how must be 3.0"),
    "was None": (lambda x, y, how: x if y is None else x * y, (X, None), (X,), (X, X), "y must be None"),
    "signed zero": (
        lambda x, y, how: x / how,
        (X, None, 0.0),
        (X, None, 0.0),
        (X, None, -0.0),
        "how must be 0.0",
    ),
    "True is not 1": (lambda x, y, how: x[how], (X, None, 1), (X, None, 1), (X, None, True), "how must be 1"),
    "a type": (lambda x, y, how: x.to(y), (X, torch.half), (X, torch.half), (X, torch.int), "torch.float16"),
    "complex": (lambda x, y, how: x * how, (X, None, 2j), (X, None, 2j), (X, None, 3j), "how must be 2j"),
    "shorter": (lambda x, y, how: x * sum(y), (X, [1, 2]), (X, [1, 2]), (X, [1]), r"y\[1\] must be 2"),
    "a tensor": (lambda x, y, how: x * how, (X, None, 2), (X, None, 2), (X, None, X), "how must be 2"),
    "one tensor": (
        lambda x, y, how: x * 2 + y,
        (X, X),
        (X, X),
        (X, X + 1),
        "x and y must be the same tensor",
    ),
    "only a size": (
        lambda x, y, how: x * len(y),
        (X, X[1:]),
        (X, X[1:]),
        (X, X[2:]),
        "y must have the sizes",
    ),
    "only a type": (lambda x, y, how: x * y.itemsize, (X, X[1:]), (X, X[1:]), (X, X[1:].half()), "y must be"),
}


@pytest.mark.parametrize("case", CONSTANTS)
def test_what_is_part_of_the_graph(case: str, tmp_path: Path) -> None:
    function, given, right, wrong, text = CONSTANTS[case]
    loaded = exported(Of(function), tmp_path, *given)
    check(loaded, Of(function), *right)
    with pytest.raises(BadCall, match=text):
        loaded(*wrong)


def test_nothing_is_as_good_as_left_out(tmp_path: Path) -> None:
    model = Of(lambda x, y, how: x * how)
    loaded = exported(model, tmp_path, X, how=float("nan"))
    assert loaded(X, None, float("nan")).isnan().all()
    with pytest.raises(BadCall, match="how must be nan"):
        loaded(X)


# The branch that is traced, a size that takes it, and one that does not.
BRANCHES: dict[str, tuple[Callable[..., bool], int, int]] = {
    "even": (lambda x: x.shape[0] % 2 == 0, 6, 5),
    "not this one": (lambda x: x.shape[0] != 7, 6, 7),
    "more than the other": (lambda x: x.shape[0] > x.shape[1], 6, 3),
    "not one": (lambda x: x.shape[0] != 1, 0, 1),
    "one or more": (lambda x: x.shape[0] > 0, 1, 0),
    "either": (lambda x: x.shape[0] == 4 or x.shape[0] > 8 or x.shape[0] % 3 == 0, 4, 5),
    "product": (lambda x: x.numel() >= 12, 5, 2),
}


@pytest.mark.parametrize("case", BRANCHES)
def test_branches_on_sizes(case: str, tmp_path: Path) -> None:
    is_taken, right, wrong = BRANCHES[case]
    model = Of(lambda x, y, how: x * 2 if is_taken(x) else x + 1)
    loaded = exported(model, tmp_path, X, dynamic=True)
    check(loaded, model, torch.randn(right, 3))
    with pytest.raises(BadCall, match=r"the graph supports|must have the sizes"):
        loaded(torch.randn(wrong, 3))


@pytest.mark.parametrize("dims", [(), (0,), ((0, 1),)], ids=["all", "one", "two"])
def test_a_size_that_would_be_squeezed(dims: Any, tmp_path: Path) -> None:
    model = Of(lambda x, y, how: x.squeeze(*dims) + 1)
    loaded = exported(model, tmp_path, X, dynamic=True)
    check(loaded, model, torch.randn(5, 4))
    with pytest.raises(BadCall, match="!= 1"):
        loaded(torch.randn(1, 4))


def test_a_tensor_of_which_only_a_size_is_read(tmp_path: Path) -> None:
    model = Of(lambda x, y, how: x * y.shape[0])
    loaded = exported(model, tmp_path, X, torch.randn(5), dynamic=True)
    for rows in (5, 7):
        check(loaded, model, X, torch.randn(rows))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x, y, how: (x + 1, x.shape), "torch.Size of an argument"),
        (lambda x, y, how: (x + 1, x.shape[0] / 2), "not an integer"),
        (lambda x, y, how: (x + 1, x.sum().item()), "not an integer"),
    ],
)
def test_results_that_would_be_those_of_the_example(function: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(NotPossible, match=text):
        exported(Of(function), tmp_path, X, dynamic=True)


def test_constants_among_the_results(tmp_path: Path) -> None:
    model = Of(lambda x, y, how: (x + 1, torch.tensor([1, 2]), torch.tensor(3.0), x.shape[0]))
    loaded = exported(model, tmp_path, X, dynamic=True)
    check(loaded, model, torch.randn(6, 5))


def test_layers_with_a_fast_path(tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    loaded = exported(model, tmp_path, torch.randn(2, 5, 8))
    check(loaded, model, torch.randn(2, 5, 8))
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_text_of_sizes() -> None:
    values = {"a": 4, "b": 7}
    assert evaluate("max(a, b) + a**2 - b//2 % 3", values) == 23
    assert names_in("max(a, b) > 3") == {"a", "b"}
    assert holds("not (a > b or a == 5) and a % 2 == 0", values)
    for text in (
        "a",
        "a < b < 9",
        "__import__('os')",
        "a.b == 1",
        "a**b > 1",
        "(a*a)**2 > 1",
        "c > 1",
        "a/0 > 1",
    ):
        with pytest.raises(BadGraph):
            holds(text, values)
