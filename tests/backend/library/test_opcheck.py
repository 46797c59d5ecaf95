"""`check_op` finds what is wrong with an operator, and nothing where nothing is."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
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
library.define("fixed(Tensor x) -> Tensor")
library.impl("fixed", lambda x: torch.histc(x, 16), "CPU")
library.impl("fixed", lambda x: x.new_empty(16), "Meta")
CALLS: list[int] = []


def keeps(x: Tensor) -> Tensor:
    CALLS.append(1)
    return x * len(CALLS)


library.define("keeps(Tensor x) -> Tensor")
library.impl("keeps", keeps, "CPU")
library.impl("keeps", lambda x: torch.empty_like(x), "Meta")
library.define("nothing(Tensor x) -> Tensor")
library.impl("nothing", lambda x: None, "CPU")
library.impl("nothing", lambda x: torch.empty_like(x), "Meta")
library.define("given(Tensor(a!) x) -> Tensor(a!)")
library.impl("given", lambda x: x.add_(1), "CPU")
library.impl("given", lambda x: x, "Meta")
library.define("counts(Tensor x) -> int")
library.impl("counts", lambda x: x.shape[0] + 1, "CPU")
library.impl("counts", lambda x: x.shape[0], "Meta")
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
    "state": (raw.keeps, [("eager", "result 0 differs from call to call")]),
    "no result": (raw.nothing, [("schema", "result 0 is None, and the schema says Tensor")]),
    "number": (raw.counts, [("fake", "value of result 0: 3, eagerly 4")]),
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


def test_an_operator_that_returns_its_argument() -> None:
    differences = torchair.check_op(raw.given, torch.randn(3)).differences
    assert "returns its argument" in differences[0].what
    assert "nothing: -> ()" in differences[0].cure


# It is the call that was given


SEEN: list[Any] = []


def without_data(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


@op("check_op_test::sees", fake=without_data)
def sees(x: Tensor) -> Tensor:
    SEEN.append(x.clone())
    return x * 2


@op("check_op_test::apart", mutates_args=("x",), fake=lambda x, y: None)
def apart(x: Tensor, y: Tensor) -> None:
    if x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr():
        raise ValueError("they share memory")
    x.add_(y)


@op("check_op_test::rolls")
def rolls(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


@op("check_op_test::rolls_by_hand", fake=lambda x: torch.empty_like(x))
def rolls_by_hand(x: Tensor) -> Tensor:
    return x + random.random() + float(np.random.rand())


@op("check_op_test::without_ir", ge_op=None)
def without_ir(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize("part", [(0, 4), (2, 4)], ids=["the same", "a part"])
def test_arguments_share_memory(part: tuple[int, int]) -> None:
    x = torch.randn(4)
    report = torchair.check_op(apart, x[:2] if part[0] else x, x[slice(*part)])
    assert [str(found) for found in report.differences] == ["eager: it fails: ValueError: they share memory"]


@op("check_op_test::reads_behind", mutates_args=("y",))
def reads_behind(x: Tensor, y: Tensor) -> Tensor:
    y.add_(1)
    return x * 2


def test_what_is_written_is_read() -> None:
    report = torchair.check_op(reads_behind, *[torch.randn(4)] * 2)
    assert report.ok, report


def test_one_tensor_twice() -> None:
    report = torchair.check_op(in_place, *[torch.randn(4)] * 2)
    assert report.ok, report


@pytest.mark.parametrize("of", [lambda z: z.conj(), lambda z: z.conj().imag], ids=["conjugate", "negative"])
def test_values_that_are_marked(of: Any) -> None:
    value = of(torch.randn(3, dtype=torch.complex64))
    SEEN.clear()
    report = torchair.check_op(sees, value)
    assert report.ok, report
    assert len(SEEN) >= 4
    assert all(torch.equal(seen, value) for seen in SEEN)


@pytest.mark.parametrize("target", [rolls, rolls_by_hand], ids=["of torch", "of Python and numpy"])
def test_check_op_restores_random_state(target: Any) -> None:
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    report = torchair.check_op(target, torch.ones(3, 4))
    assert report.ok, report
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), repr(np.random.get_state())) == before[1:]


def test_what_was_compiled_stays() -> None:
    graphs: list[Any] = []

    def count(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = torch.compile(lambda x: x + 1, backend=count)
    compiled(torch.ones(3))
    for _ in range(2):
        assert torchair.check_op(good, torch.ones(3, 4), 2.0).ok
    compiled(torch.ones(3))
    assert len(graphs) == 1


def test_check_op_repeats_notes() -> None:
    for _ in range(2):
        report = torchair.check_op(without_ir, torch.ones(3, 4))
        assert report.ok, report
        assert [note.check for note in report.notes] == ["graph mode"]
        assert "carried through" in report.notes[0].what


# Sizes


@op("check_op_test::constant", fake=lambda x: x.new_empty(6, 4))
def constant(x: Tensor) -> Tensor:
    return x.repeat(2, 1)


@op("check_op_test::decided", fake=lambda x: x.new_empty(int(x.shape[0]) * 2, x.shape[1]))
def decided(x: Tensor) -> Tensor:
    return x.repeat(2, 1)


@op("check_op_test::bins", fake=lambda x: x.new_empty(16))
def bins(x: Tensor) -> Tensor:
    return torch.histc(x, 16)


@op("check_op_test::only_four", fake=lambda x: torch.empty_like(x) if x.shape[1] == 4 else None)
def only_four(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, 2)).flip(1).flatten(1)


SIZES: dict[str, tuple[Any, list[str], list[str]]] = {
    "constant": (
        constant,
        [f"size {dim} of result 0 is {size} whatever" for dim, size in enumerate((6, 4))],
        [],
    ),
    "decided": (decided, ["size 0 of 'x' is fixed at 3, and the operator takes others"], []),
    "a constant that is right": (bins, [], []),
    "a size that must be": (only_four, [], ["size 1 of 'x' is fixed at 4: others are compiled anew"]),
    "of a library": (raw.fixed, [], ["size 0 of result 0 is 16 whatever"]),
    "a number that was given": (torch.ops.aten.topk, [], []),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_that_are_fixed(case: str) -> None:
    target, differences, notes = SIZES[case]
    args = (torch.rand(3, 4), 2) if target is torch.ops.aten.topk else (torch.rand(3, 4),)
    report = torchair.check_op(target, *args)
    found = [each for each in report.differences if each.check == "fake, any size"]
    noted = [each for each in report.notes if each.check == "fake, any size"]
    for each, what in zip((*found, *noted), (*differences, *notes), strict=True):
        assert each.what.startswith(what)
    assert len(found) == len(differences)
    assert report.ok == (not differences), report


def test_check_op_reports_compiler_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("this is why\nand a page of advice")

    monkeypatch.setattr("torchair.backend.library.opcheck.compile_fx", fail)
    report = torchair.check_op(good, torch.ones(3, 4), 2.0)
    assert [str(found) for found in report.differences] == [
        "graph mode: it fails: ValueError: this is why",
        "capture mode: it fails: ValueError: this is why",
    ]


def test_check_op_refuses_what_is_not_an_operator() -> None:
    with pytest.raises(BadCall, match="takes an operator first"):
        torchair.check_op(lambda x: x, torch.ones(2))
