"""Padded calls are compared with others: what is noticed, and when it is looked at again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchair.inference._padding.checks import Checks, difference, tells
from torchair.inference._padding.output_crop import Unknown, declared_crops

X = torch.randn(4, 5)
MINUS = torch.tensor([[float("-inf")], [torch.finfo(torch.float32).min], [-1e9], [0.0]])


@pytest.mark.parametrize(
    ("expected", "found", "why"),
    [
        (X, X.clone(), None),
        (X, X * (1 + 1e-6), None),
        (X, X * 1.01, "other numbers"),
        # Numbers that stand for minus infinity are no measure of the others.
        (torch.cat([X, MINUS], 1), torch.cat([X, MINUS], 1), None),
        (torch.cat([X, MINUS], 1), torch.cat([X * 1.01, MINUS], 1), "other numbers"),
        (torch.full((3,), float("nan")), torch.full((3,), float("nan")), None),
        (torch.full((3,), float("nan")), torch.zeros(3), "other numbers"),
        (X.bfloat16(), X.bfloat16() * 1.001, None),
        (X > 0, X > 1, "other numbers"),
        (X, X[1:], "the shape"),
        ((X, 7), (X, 8), "8 and not 7"),
        ((X, 1), (X, True), "True and not 1"),
        ((X, X), [X, X], "other outputs"),
        ({"a": X}, {"b": X}, "other outputs"),
        ((X, None), (X, None), None),
    ],
)
def test_what_is_a_difference(expected: Any, found: Any, why: str | None) -> None:
    told = difference(expected, found)
    assert told is None if why is None else told is not None and why in told


def test_zeros_tell_nothing() -> None:
    assert not tells((torch.zeros(3), torch.full((2,), float("-inf")), torch.arange(3)))
    assert tells((torch.zeros(3), torch.tensor([0.0, 1.0])))
    assert tells(torch.zeros(3, dtype=torch.long)), "whole numbers are equal or not"


def test_when_a_gear_is_checked_again() -> None:
    checks = Checks()
    assert checks.is_due(1)
    checks.calls += 1
    assert checks.is_due(1), "the first one told nothing"
    checks.passed(3)
    assert [checks.is_due(padding) for padding in (1, 6, 7)] == [False, False, True]
    checks.passed(7)
    due = []
    for number in range(checks.calls + 1, 300):
        if checks.is_due(7):
            checks.passed(7)
            due.append(number)
        checks.calls += 1
    assert due == [16, 64, 256]


def test_declared_crops_refuses_opaque_outputs() -> None:
    class Answer:
        logits = X

    with pytest.raises(Unknown, match="is or holds a Answer"):
        declared_crops((X, Answer()), {0: 1})


def test_a_crop_is_as_eager_gives_it() -> None:
    x = torch.randn(5, 6)
    crops = declared_crops((x.t(), x), {0: 1, 1: 0})
    transposed, rows = crops.cut((x.t(), x), 3)
    assert (transposed.stride(), rows.stride()) == (x[:3].clone().t().stride(), (6, 1))
    assert [each.untyped_storage().nbytes() for each in (transposed, rows)] == [3 * 6 * 4] * 2
