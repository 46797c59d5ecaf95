"""Spellings of methods that libraries and users have: arguments, attributes and results of all kinds."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from typing import Any

import torch
from torch import nn

from tests.inference.helper import decorated, shifted


class Kind(enum.Enum):
    """An attribute that is no number."""

    ONE = 1
    TWO = 2


@dataclasses.dataclass
class Result:
    """As models return it."""

    y: torch.Tensor
    count: int
    more: list[torch.Tensor]


Pair = collections.namedtuple("Pair", "first second")


class Programs(nn.Module):
    """One method for each spelling."""

    times = 3

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.line.weight
        self.lines = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.rows = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.register_buffer("buffer", torch.arange(4.0))
        self.kind, self.nothing, self.choice = Kind.ONE, None, {1, 2, 3}
        self.partial = functools.partial(shifted, by=3)
        self.plain = torch.ones(4) * 2
        self.settings = {"eps": 1e-5, "names": ["a", "b"]}
        self.function = torch.relu

    @property
    def factor(self) -> int:
        return 7

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def results(self, x: torch.Tensor) -> Any:
        return {"a": self.line(x), "b": [x + 1, {"c": x * 2}], "n": None, "t": "text"}

    def a_dataclass(self, x: torch.Tensor) -> Result:
        return Result(self.line(x), 3, [x + 1])

    def a_named_tuple(self, x: torch.Tensor) -> Any:
        return Pair(self.line(x), 5)

    def keywords(self, x: torch.Tensor, *, flag: bool = False, name: str = "a", more: Any = None) -> Any:
        y = self.line(x) + flag
        y = y * 2 if name == "b" else y
        return y if more is None else y + more

    def any_number(self, *args: Any, **kwargs: Any) -> Any:
        return sum(args) + sum(kwargs.values()) + self.buffer

    def attributes(self, x: torch.Tensor) -> Any:
        y = self.partial(self.line(x)) + (1 if self.kind is Kind.ONE else 2) + self.factor
        y = y * self.plain + self.settings["eps"] + len(self.settings["names"])
        return self.function(y) + (self.nothing is None) + (2 in self.choice) + type(self).times

    def containers(self, x: torch.Tensor) -> Any:
        for line in self.lines:
            x = line(x)
        return self.named["a"](x) * self.rows[0]

    def tying(self, x: torch.Tensor) -> Any:
        return self.tied(self.line(x))

    @decorated
    def wrapped(self, x: torch.Tensor, less: int = 1, more: int = 2) -> Any:
        return self.inner(self.line(x)) * more - less

    def nested(self, xs: list[torch.Tensor], table: dict[str, int]) -> Any:
        return self.line(xs[0]) + xs[1] * table["z"]

    def without_arguments(self) -> Any:
        return self.line(self.buffer)

    def written(self, x: torch.Tensor) -> Any:
        self.buffer.add_(1)
        return self.line(x) + self.buffer


class Below(Programs):
    """A subclass with a class attribute and a method of its own."""

    times = 5

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return super().inner(x) * 2


X = torch.arange(8.0).reshape(2, 4) / 8
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "results": ((X,), {}),
    "a_dataclass": ((X,), {}),
    "a_named_tuple": ((X,), {}),
    "keywords": ((X,), {"flag": True, "name": "b", "more": X}),
    "any_number": ((X, X), {"a": X}),
    "attributes": ((X,), {}),
    "containers": ((X,), {}),
    "tying": ((X,), {}),
    "wrapped": ((X,), {}),
    "nested": (([X, X], {"z": 2}), {}),
    "without_arguments": ((), {}),
    "written": ((X,), {}),
}
