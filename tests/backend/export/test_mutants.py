"""Graph files that something happened to: an error of ours, or the result that the file now means; never a
crash, another kind of error, or memory without bound.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

import torchair
from tests.backend.export import wire
from tests.backend.export.test_round_trip import exported
from torchair.core.errors import AirError

SPARE = 4 << 30
"""Bytes that a mutant may ask for: far more than any of these graphs needs."""
SECONDS = 60
X = torch.randn(3, 4)


class Net(nn.Module):
    """Weights, a state, sizes, a constant, nested results."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 6)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> Any:
        y = self.a(x).softmax(-1) * scale
        self.seen.add_(y.sum(0))
        ones = torch.ones(x.shape[0], 2)
        return {"y": y[:, 1:3] + ones, "pair": (x.shape[0], torch.cat([ones, x], 1).T)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The same model for one size, and for all."""
    made = {dynamic: tmp_path_factory.mktemp("net") for dynamic in (False, True)}
    for dynamic, folder in made.items():
        exported(Net(), folder, X, dynamic=dynamic)
    return made


# What happens to bytes


def flip(chance: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def cut(chance: random.Random, data: bytes) -> bytes:
    start, end = sorted(chance.randrange(len(data)) for _ in range(2))
    return data[:start] if chance.random() < 0.5 else data[:start] + data[end:]


def insert(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + chance.randbytes(chance.randint(1, 40)) + data[at:]


# What happens to fields

NUMBERS = (-(2**63), -2, -1, 0, 1, 2, 3, 5, 7, 28, 63, 2**20, 2**31, 2**33, 2**60, 2**63 - 1)
TEXTS = (
    "",
    "..",
    "../x",
    "/",
    "x",
    "x:0",
    ":-1",
    "x:99",
    "\0",
    "a" * 300,
    "Data",
    "NetOutput",
    "Fill",
    "While",
)


def fields_of(message: Any) -> Iterator[tuple[Any, Any]]:
    """Every message below this one, with each of its fields that is set."""
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is None:
            continue
        is_map = field.message_type.GetOptions().map_entry
        below = list(value.values()) if is_map else [value] if hasattr(value, "ListFields") else value
        for inner in below:
            yield from fields_of(inner)


def change_field(chance: random.Random, data: bytes) -> bytes:
    """One field has another value; one of a list is gone, twice there, or elsewhere."""
    model = wire.message(data=data)
    message, field = chance.choice(list(fields_of(model)))
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key = chance.choice(sorted(value))
        if chance.random() < 0.5:
            del value[key]
        else:
            value[key].CopyFrom(value[chance.choice(sorted(value))])
    elif isinstance(value, bool | int | float | str | bytes):
        with contextlib.suppress(ValueError):  # an enum has 32 bits
            setattr(message, field.name, other(chance, value))
    elif hasattr(value, "ListFields"):
        value.Clear()
    else:
        change_list(chance, value)
    return bytes(model.SerializeToString())


def other(chance: random.Random, value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return chance.choice((value - 1, value + 1, *NUMBERS))
        case float():
            return chance.choice((0.0, -1.0, float("nan"), float("inf"), 1e30))
        case str():
            return chance.choice((*TEXTS, value + "x", value[:-1]))
        case _:
            return flip(chance, value) if value and chance.random() < 0.5 else value[:-1]


def change_list(chance: random.Random, values: Any) -> None:
    at = chance.randrange(len(values))
    match chance.randrange(3):
        case 0:
            del values[at]
        case 1 if hasattr(values, "add"):
            values.add().CopyFrom(values[at])
        case 1:
            values.append(values[at])
        case _ if hasattr(values, "add"):
            values[at].CopyFrom(values[chance.randrange(len(values))])
        case _:
            values[at] = other(chance, values[at])


def change_kind(chance: random.Random, data: bytes) -> bytes:
    """An attribute is of another kind."""
    model = wire.message(data=data)
    op = chance.choice(list(model.graph[0].op))
    attr = op.attr[chance.choice(sorted(op.attr) or ["new"])]
    kinds: tuple[Callable[[], Any], ...] = (
        attr.Clear,
        lambda: setattr(attr, "i", chance.choice(NUMBERS)),
        lambda: setattr(attr, "f", 0.5),
        lambda: setattr(attr, "b", True),
        lambda: setattr(attr, "s", b"text\xff"),
        lambda: setattr(attr, "dt", chance.choice(NUMBERS)),
        lambda: setattr(attr, "expression", b"s0"),
        lambda: attr.list.i.extend([1, 2, 3]),
        lambda: attr.list.f.append(0.5),
        lambda: setattr(attr.list, "val_type", chance.randrange(11)),
        lambda: attr.list_list_int.list_list_i.add(),
        lambda: attr.t.SetInParent(),
        lambda: attr.g.SetInParent(),
        lambda: attr.td.SetInParent(),
    )
    chance.choice(kinds)()
    return bytes(model.SerializeToString())


def change_sizes(chance: random.Random, data: bytes) -> bytes:
    """Numbers that constants hold: most of them are sizes, places and axes."""
    model = wire.message(data=data)
    consts = [op for op in model.graph[0].op if op.type == "Const" and len(op.attr["value"].t.data) % 8 == 0]
    stored = chance.choice(consts).attr["value"].t
    at = 8 * chance.randrange(max(len(stored.data) // 8, 1))
    number = chance.choice(NUMBERS).to_bytes(8, "little", signed=True)
    stored.data = stored.data[:at] + number + stored.data[at + 8 :]
    return bytes(model.SerializeToString())


def change_json(chance: random.Random, data: bytes) -> bytes:
    """What the file says of calls, arguments and results."""
    model = wire.message(data=data)
    attrs = model.graph[0].attr
    name = chance.choice(["_torchair_call", "_torchair_feeds", "_torchair_results"])
    whole = json.loads(attrs[name].s)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in pairs:
            places.append((node, key))
            walk(value)

    walk(whole)
    node, key = chance.choice(places)
    if chance.random() < 0.2:
        del node[key]
    else:
        node[key] = chance.choice(
            [None, True, -1, 0, 1, 2**60, 0.5, "", "s0*", "s0//0", "../x", "cuda:9", [], {}, [[]], {"x": 1}]
        )
    attrs[name].s = json.dumps(whole).encode()
    return bytes(model.SerializeToString())


CHANGES = (flip, cut, insert, change_field, change_field, change_kind, change_sizes, change_json)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Memory and time have an end."""

    def ring(*_: Any) -> None:
        raise AssertionError(f"not done after {SECONDS} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    memory = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, memory[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, memory)
        signal.signal(signal.SIGALRM, before)


def outcome(path: Path, codegen: str) -> Any:
    """The result of a call, or the error of ours."""
    config = torchair.CompilerConfig()
    config.engine_config.codegen = codegen
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torchair.DegradedWarning)
            return torchair.load_air(path, config=config)(X)
    except AirError as error:
        return error


def same(got: Any, want: Any) -> bool:
    """Of any form: a mutant may return text."""
    one, other = pytree.tree_flatten(got), pytree.tree_flatten(want)
    pairs = zip(one[0], other[0], strict=True)
    return one[1] == other[1] and all(
        torch.allclose(a, b, equal_nan=True) if isinstance(a, torch.Tensor) else a == b for a, b in pairs
    )


def check(folder: Path, change: Any, seed: int, digests: bool) -> bool:
    """Was the mutant refused?"""
    path = folder / "net.air"
    whole = path.read_bytes()
    place = folder / "mutant"
    shutil.copytree(folder, place, ignore=lambda *_: ["mutant", *([] if digests else ["net.air.sha256"])])
    try:
        made = change(random.Random(seed), whole)
        (place / "net.air").write_bytes(made)
        with bounded():
            got = outcome(place / "net.air", "eager")
            if digests and made != whole:
                assert "differs from what was exported" in str(got)
            if isinstance(got, AirError):
                return True
            want = outcome(place / "net.air", "reference")
        assert not isinstance(want, AirError), want
        assert same(got, want), (got, want)
        return False
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.full)])
def test_mutants(folders: dict[bool, Path], count: int) -> None:
    refused: list[bool] = []

    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(CHANGES), st.integers(0, 2**32), st.booleans(), st.integers(0, 7))
    def run(change: Any, seed: int, dynamic: bool, digests: int) -> None:
        refused.append(check(folders[dynamic], change, seed, digests == 0))

    run()
    assert 0 < sum(refused) < len(refused), "some are refused, some mean something"


def test_whole_files_run(folders: dict[bool, Path]) -> None:
    """What is compared is what the model computes."""
    for folder in folders.values():
        for codegen in ("eager", "reference"):
            torch.testing.assert_close(outcome(folder / "net.air", codegen)["pair"][0], 3)
