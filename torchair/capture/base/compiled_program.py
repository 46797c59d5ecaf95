"""What every way to run a program asks: the program, what is known of its graph, and who watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch

from torchair.capture.base.inputs import Inputs
from torchair.capture.base.output_buffers import Room
from torchair.capture.base.policy import Policy
from torchair.capture.base.stats import Book
from torchair.core.diagnostics import Degradations
from torchair.core.program import Program
from torchair.devices import Device, Graph, device_row
from torchair.fxgraph.layout_check import Contract

T = TypeVar("T")

KEY, INPUTS, PARAMETERS = "key generation", "input processing", "parameter update"
"""Phases of a call."""


class Observer:
    """Watches a runner. What is here sees nothing."""

    watches_calls = False
    """Does it want to see every call? Then there is no quick way around it."""

    takes_outputs = False
    """Does it take what the program returns beside the results of the graph? Then both belong together."""

    def called(self, args: Sequence[Any]) -> None:
        """A call begins, with these arguments."""

    def returned(self, outputs: list[Any]) -> None:
        """It ended."""

    def recorded(self, graph: Graph) -> None:
        """A device graph was recorded. Must not raise."""

    def timed(self, phase: str, function: Callable[..., T]) -> Callable[..., T]:
        """The same function; a phase of a call may be timed by it."""
        return function


@dataclass(frozen=True)
class Compiled:
    """A program and its graph."""

    program: Program
    inputs: Inputs
    policy: Policy
    device: torch.device
    name: str
    degradations: Degradations = field(default_factory=Degradations)
    contract: Contract | None = None
    """What the graph promised of its results."""
    observers: tuple[Observer, ...] = ()
    room: Room = field(default_factory=Room)
    """What the largest call takes, where sizes were announced."""

    @cached_property
    def row(self) -> Device:
        """What the device offers."""
        return device_row(self.device)

    def timed(self, phase: str, function: Callable[..., T]) -> Callable[..., T]:
        """As the observers want it."""
        for observer in self.observers:
            function = observer.timed(phase, function)
        return function

    def book(self) -> Book:
        """A new one, for the events of this graph."""
        return Book(self.name)
