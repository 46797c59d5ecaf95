"""Loaded graphs return what the model returned: named tuples, torch's among them, wherever they are."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import torchair
from tests.backend.export import wire
from tests.backend.export.test_round_trip import exported
from torchair.core.errors import AirError

X = torch.randn(4, 4)
Pair = namedtuple("Pair", "first second")


class Typed(NamedTuple):
    made: Any
    count: int = 3


class Outer:
    class Inner(NamedTuple):
        x: Any


@dataclass
class Record:
    left: Any
    right: Any


@dataclass(frozen=True)
class Counts:
    """Its constructor does not take each field, and changes one that it takes."""

    made: Any
    calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", 3)
        object.__setattr__(self, "made", self.made + 1)


Nothing = namedtuple("Nothing", "")


class Several(list[Any]):
    pass


class Both(tuple[Any, ...]):
    __slots__ = ()


class Model(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor) -> Any:
        return self.fn(x)


ROWS: dict[str, Callable[..., Any]] = {
    "sort": lambda x: x.sort(0),
    "three fields": torch.linalg.svd,
    "in a dict": lambda x: {"best": x.topk(2), "all": OrderedDict(a=x + 1)},
    "in lists and tuples": lambda x: [x.max(0), (x.min(0), (x.cummax(0),))],
    "in a dataclass": lambda x: Record(x.kthvalue(1, 0), Pair(x.median(0), 3)),
    "named by the user": lambda x: Pair(x + 1, x * 2),
    "with types": lambda x: Typed(x * 2),
    "within a class": lambda x: Outer.Inner(x * 2),
    "without fields": lambda x: (Nothing(), x + 1),
    "a dataclass that computes": lambda x: Counts(x * 2),
    "lists and tuples of the user's": lambda x: Several([Both((x + 1, x))]),
    "sizes": lambda x: (x.shape, x + 1),
}


def structure(value: Any) -> Any:
    """Classes, with fields and keys."""
    if isinstance(value, dict):
        return type(value), {key: structure(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value), [structure(item) for item in value]
    if is_dataclass(value):
        return type(value), structure(vars(value))
    return type(value)


@pytest.mark.parametrize("name", ROWS)
def test_the_same_classes(name: str, tmp_path: Path) -> None:
    model = Model(ROWS[name])
    loaded = exported(model, tmp_path, X)
    for _ in range(2):
        assert structure(loaded(X)) == structure(model(X))


def test_fields_hold_what_they_held(tmp_path: Path) -> None:
    model = Model(lambda x: x.sort(0, descending=True))
    loaded = exported(model, tmp_path, X)
    torch.testing.assert_close(loaded(X).values, model(X).values)
    torch.testing.assert_close(loaded(X).indices, model(X).indices)


def test_a_constructor_does_not_compute_twice(tmp_path: Path) -> None:
    model = Model(ROWS["a dataclass that computes"])
    torch.testing.assert_close(exported(model, tmp_path, X)(X).made, model(X).made)


def test_sizes_of_an_argument_that_nothing_reads(tmp_path: Path) -> None:
    """The graph does not know them."""
    model = Model(lambda x: torch.ones(x.shape[0]) * 2)
    loaded = exported(model, tmp_path, torch.randn(4, 3), dynamic=True)
    for rows in (4, 6, 1):
        torch.testing.assert_close(loaded(torch.randn(rows, 5)), torch.full((rows,), 2.0))
    with pytest.raises(AirError, match=r"torch\.Size of an argument"):
        exported(Model(lambda x: (x.shape, torch.ones(3) * 2)), tmp_path, torch.randn(4, 3), dynamic=True)


@pytest.mark.parametrize("fn", [lambda x: x.sort(0), lambda x: Typed(x * 2, 5)])
def test_a_class_that_is_not_loaded(fn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another named tuple of the same name with the same fields takes its place: the same in each call."""
    model = Model(fn)
    loaded = exported(model, tmp_path, X)
    wanted = model(X)
    monkeypatch.delitem(sys.modules, type(wanted).__module__)
    first, second = loaded(X), loaded(X)
    fields = wanted._fields if isinstance(wanted, Typed) else ("values", "indices")
    assert type(first) is type(second) is not type(wanted)
    assert type(first).__name__ == type(wanted).__name__
    assert first._fields == fields
    torch.testing.assert_close(first[0], wanted[0])


def test_a_class_of_other_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = exported(Model(ROWS["named by the user"]), tmp_path, X)
    monkeypatch.setattr(sys.modules[__name__], "Pair", namedtuple("Pair", "second first third"))
    assert loaded(X)._fields == ("first", "second")


def result_changed(path: Path, change: Callable[[Any], Any]) -> Any:
    """The model of this file, which says something else of its result."""
    message = wire.message(data=path.read_bytes())
    call = message.graph[0].attr["_torchair_call"]
    whole = json.loads(call.s)
    whole["result"] = change(whole["result"])
    call.s = json.dumps(whole).encode()
    path.write_bytes(message.SerializeToString())
    path.with_name(path.name + ".sha256").unlink(missing_ok=True)
    for digest in path.parent.glob("*sha256*"):
        digest.unlink()
    return torchair.load_air(path)


def test_files_that_were_written_before(tmp_path: Path) -> None:
    """A named tuple was a tuple there if it was torch's, and known by its class if it was the user's."""
    exported(Model(lambda x: (x + 1, x * 2)), tmp_path, X)
    assert type(torchair.load_air(tmp_path / "net.air")(X)) is tuple
    name = f"{__name__}:Pair"

    def before(result: Any) -> Any:
        return {"items": dict(zip(("first", "second"), result["tuple"], strict=True)), "type": name}

    assert type(result_changed(tmp_path / "net.air", before)(X)) is Pair


@pytest.mark.parametrize("field", ["no name", "class", "_hidden", ""])
def test_fields_that_no_tuple_can_have(field: str, tmp_path: Path) -> None:
    exported(Model(ROWS["sort"]), tmp_path, X)

    def renamed(result: Any) -> Any:
        values, indices = result["items"].values()
        return {**result, "items": {field: values, "indices": indices}}

    with pytest.raises(AirError, match="field"):
        result_changed(tmp_path / "net.air", renamed)(X)
