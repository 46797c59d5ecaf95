"""Calls of `auto_gears`, and call signatures: calls that differ only in the size share one."""

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
    """One call, with its arguments bound to names."""

    bound: inspect.BoundArguments
    named: dict[str, tuple[torch.Tensor, int]]  # the tensors with the size, and its dimension in each
    size: int
    form: Hashable

    @property
    def device(self) -> torch.device:
        """The device of the first tensor with the size."""
        return next(iter(self.named.values()))[0].device

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the call, with these tensors replaced."""
        bound = inspect.BoundArguments(self.bound.signature, self.bound.arguments.copy())
        for name, tensor in tensors.items():
            if name in bound.arguments:
                bound.arguments[name] = tensor
            else:
                extra = _extra(bound)
                bound.arguments[extra] = {**bound.arguments[extra], name: tensor}
        return bound.args, bound.kwargs


def _extra(bound: inspect.BoundArguments) -> str:
    """Return the name of the `**kwargs` parameter."""
    return next(p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD)


@dataclass
class CallSignature:
    """The state of all calls that differ only in the size."""

    recent: deque[int]
    run: Apart | None = None
    made_for: tuple[int, ...] = ()  # the gears that `run` was created with
    remade: int = 0
    gears: tuple[int, ...] = ()  # the gears in use
    cost: float = 0.0  # the expected cost with these gears
    choices: int = 0
    is_crowded: bool = False  # whether too many other signatures have gears
    calls: Counter[int] = field(default_factory=Counter[int])  # calls of each gear
    checks: dict[int, Checks] = field(default_factory=dict[int, Checks])
    padding: Padding | None = None
    why_not_padded: str | None = None
    learned: int = 0  # number of times that `padding` was determined
    bytes: dict[int, int] = field(default_factory=dict[int, int])  # bytes of inputs and outputs, by size

    def takes(self, size: int) -> int:
        """Return the bytes of inputs and outputs of a gear.

        For an unseen size, return those of the next larger size; without one, scale the largest size by the
        square of the ratio.
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
        """The bytes of all gears: they share memory, so only the largest one counts."""
        return self.takes(self.gears[-1]) if self.gears else 0

    def admits(self, size: int) -> bool:
        """Whether a call of this size runs the same ops as the call that `padding` was determined from."""
        return self.padding is not None and self.padding.admits(size)

    @property
    def is_checked(self) -> bool:
        """Whether padded calls are compared with unpadded ones."""
        return self.padding is not None and self.padding.is_checked

    @property
    def has_run(self) -> bool:
        """Whether code of the model may have run in the latest call of a gear."""
        return self.run is not None and self.run.has_run

    @property
    def has_failed_alone(self) -> bool:
        """Whether a graph without side effects failed, and nothing else had run."""
        return self.is_checked and self.run is not None and self.run.has_failed_alone

    def program(self) -> Apart:
        """Return the compiled model of the gears."""
        assert self.run is not None, "a signature with gears has a program"
        return self.run

    def begin(self, run: Apart, gears: tuple[int, ...]) -> None:
        """Use these gears. Each of their programs is compiled at its first call."""
        self.run, self.made_for, self.gears = run, gears, gears
        self.calls, self.checks = Counter(), {}
