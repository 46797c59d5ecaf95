"""`check_op` finds what is wrong with an operator, and nothing where nothing is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import torchair
from torchair import ge
from torchair.core.errors import BadCall

op = torchair.op


@op("check_op_test::good")
def good(x: Tensor, k: float) -> Tensor:
    return x * k


@op("check_op_test::in_place", mutates_args=("x",))
def in_place(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@op("check_op_test::kinds", fake=lambda x: x.new_empty(x.shape[1:], dtype=torch.int32, device="meta"))
def kinds(x: Tensor) -> Tensor:
    return x * 2


@op("check_op_test::strides", fake=lambda x: torch.empty_like(x))
def strides(x: Tensor) -> Tensor:
    return (x * 2).t().contiguous().t()


@op("check_op_test::writes", fake=lambda x: torch.empty_like(x))
def writes(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


@op("check_op_test::itself", fake=lambda x: torch.empty_like(x))
def itself(x: Tensor) -> Tensor:
    return x


@op("check_op_test::converted")
def converted(x: Tensor) -> Tensor:
    return x * 2


torchair.register_fx_node_ge_converter(torch.ops.check_op_test.converted.default)(
    lambda x: ge.Add(x, ge.Const(1.0))
)
library = torch.library.Library("check_op_test", "FRAGMENT")
library.define("shares(Tensor x) -> Tensor")
library.impl("shares", lambda x: x[1:], "CPU")
library.impl("shares", lambda x: x.new_empty(x.shape[0] - 1, *x.shape[1:]), "Meta")
library.define("reads(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,))
library.impl("reads", lambda x: x * 2, "CPU")
library.impl("reads", lambda x: torch.empty_like(x), "Meta")
library.define("no_fake(Tensor x) -> Tensor")
library.impl("no_fake", lambda x: x * 2, "CPU")
raw = torch.ops.check_op_test

WRONG: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "fake": (
        kinds,
        [("fake", "shape of result 0"), ("fake", "dtype of result 0"), ("fake", "device of result 0")],
    ),
    "strides": (strides, [("fake", "strides of result 0: [4, 1], eagerly [1, 3]")]),
    "mutation": (writes, [("schema", "changes its argument 'x'")]),
    "result is the argument": (itself, [("schema", "a result is an argument")]),
    "result is a view": (raw.shares, [("schema", "result 0 shares memory with the argument 'x'")]),
    "converter": (converted, [("graph mode", "result 0 differs from the eager one")]),
    "recording": (raw.reads, [("recorded", "cannot be recorded")]),
    "no fake": (raw.no_fake, [("fake", "has no fake function")]),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found(name: str) -> None:
    target, wanted = WRONG[name]
    report = torchair.check_op(target, torch.randn(3, 4))
    assert not report.ok
    # What shares memory that nobody knows of also fails in compilers.
    found_first = report.differences[: len(wanted)] if target is raw.shares else report.differences
    assert [found.check for found in found_first] == [check for check, _ in wanted]
    for found, (_, what) in zip(found_first, wanted, strict=True):
        assert what in found.what
        assert found.check in str(report)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (good, (torch.ones(3, 4), 2.0)),
        (torch.ops.check_op_test.good, (torch.ones(4, 3).t(), 2.0)),
        (in_place, (torch.zeros(3, 8)[:, ::2], torch.ones(3, 4))),
    ],
    ids=["plain", "strides", "in place, with gaps"],
)
def test_nothing_is_wrong(target: Any, args: tuple[Any, ...]) -> None:
    kept = [value.clone() if isinstance(value, Tensor) else value for value in args]
    report = torchair.check_op(target, *args)
    assert report.ok, report
    assert {"fake", "functionalised", "graph mode", "capture mode", "recorded"} <= set(report.passed)
    torch.testing.assert_close(list(args), kept)


def test_no_operator() -> None:
    with pytest.raises(BadCall, match="takes an operator first"):
        torchair.check_op(lambda x: x, torch.ones(2))
