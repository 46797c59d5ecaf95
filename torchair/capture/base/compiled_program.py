"""What every way to run a program asks: the program, what is known of its graph, and who watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch

from torchair.capture.base.inputs import InputInfo
from torchair.capture.base.output_buffers import MaxSizes
from torchair.capture.base.policy import Policy
from torchair.capture.base.stats import CaptureStats
from torchair.core.diagnostics import Diagnostics
from torchair.core.program import Program
from torchair.devices import Device, Graph, get_device
from torchair.fxgraph.layout_check import OutputLayouts

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
class CompiledProgram:
    """A program and its graph."""

    program: Program
    inputs: InputInfo
    policy: Policy
    device: torch.device
    name: str
    degradations: Diagnostics = field(default_factory=Diagnostics)
    contract: OutputLayouts | None = None
    """What the graph promised of its results."""
    observers: tuple[Observer, ...] = ()
    room: MaxSizes = field(default_factory=MaxSizes)
    """What the largest call takes, where sizes were announced."""

    @cached_property
    def row(self) -> Device:
        """What the device offers."""
        return get_device(self.device)

    def timed(self, phase: str, function: Callable[..., T]) -> Callable[..., T]:
        """As the observers want it."""
        for observer in self.observers:
            function = observer.timed(phase, function)
        return function

    def book(self) -> CaptureStats:
        """A new one, for the events of this graph."""
        return CaptureStats(self.name)
