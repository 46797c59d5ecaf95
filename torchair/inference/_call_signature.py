"""Calls of `auto_gears`, and forms: calls that differ in nothing but the size."""

from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchair.inference._padding.captured_graph import Apart, Padding
from torchair.inference._padding.checks import Checks


@dataclass
class BoundCall:
    """One call, its arguments bound to names."""

    bound: inspect.BoundArguments
    named: dict[str, tuple[torch.Tensor, int]]  # of each tensor with the size, which dimension
    size: int
    form: Hashable

    @property
    def device(self) -> torch.device:
        """Of the first tensor with the size."""
        return next(iter(self.named.values()))[0].device

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, some of them others."""
        bound = inspect.BoundArguments(self.bound.signature, self.bound.arguments.copy())
        for name, tensor in tensors.items():
            if name in bound.arguments:
                bound.arguments[name] = tensor
            else:
                extra = _extra(bound)
                bound.arguments[extra] = {**bound.arguments[extra], name: tensor}
        return bound.args, bound.kwargs


def _extra(bound: inspect.BoundArguments) -> str:
    """The parameter that takes all other names."""
    return next(p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD)


@dataclass
class CallSignature:
    """Calls that differ in nothing but the size."""

    recent: deque[int]
    run: Apart | None = None
    made_for: tuple[int, ...] = ()  # the gears of `run`
    remade: int = 0
    gears: tuple[int, ...] = ()  # those that serve
    cost: float = 0.0  # expected of these gears
    choices: int = 0
    is_crowded: bool = False  # by forms that have gears
    calls: Counter[int] = field(default_factory=Counter[int])  # of each gear
    checks: dict[int, Checks] = field(default_factory=dict[int, Checks])
    padding: Padding | None = None
    why_not_padded: str | None = None
    learned: int = 0  # times that it was found out how to pad
    bytes: dict[int, int] = field(default_factory=dict[int, int])  # of inputs and outputs, by the size

    def takes(self, size: int) -> int:
        """Bytes that a gear has of inputs and outputs. Of a size that none was seen of: as the next larger
        one, and else as the largest if they grow with its square.
        """
        if not self.bytes or size in self.bytes:
            return self.bytes.get(size, 0)
        larger = min((known for known in self.bytes if known > size), default=None)
        if larger is not None:
            return self.bytes[larger]
        largest = max(self.bytes)
        return int(self.bytes[largest] * (size / largest) ** 2)

    @property
    def planned(self) -> int:
        """Gears share memory: the largest counts."""
        return self.takes(self.gears[-1]) if self.gears else 0

    def admits(self, size: int) -> bool:
        """Do calls of this size what those do of which it is known how they are padded?"""
        return self.padding is not None and self.padding.admits(size)

    @property
    def is_checked(self) -> bool:
        """Are padded calls compared with others?"""
        return self.padding is not None and self.padding.is_checked

    @property
    def has_run(self) -> bool:
        """May code of the model have run in the latest call of a gear?"""
        return self.run is not None and self.run.has_run

    @property
    def has_failed_alone(self) -> bool:
        """Was nothing but a graph run, and failed, which is known to do nothing but compute?"""
        return self.is_checked and self.run is not None and self.run.has_failed_alone

    def program(self) -> Apart:
        """That of its gears."""
        assert self.run is not None, "there are gears"
        return self.run

    def begin(self, run: Apart, gears: tuple[int, ...]) -> None:
        """Have programs for these gears, which are made when each first comes."""
        self.run, self.made_for, self.gears = run, gears, gears
        self.calls, self.checks = Counter(), {}
