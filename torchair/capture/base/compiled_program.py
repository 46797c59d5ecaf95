"""The compiled program that all strategies run, with the facts about its graph and its observers."""

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
    """Interface to watch a runner. The methods of this base class do nothing."""

    watches_calls = False
    """Whether every call must be reported. Fast paths, which skip the observers, are then not used."""

    takes_outputs = False
    """Whether the observer consumes values that the program returns in addition to the results of the graph.
    The observer and the program must then be used together.
    """

    def called(self, args: Sequence[Any]) -> None:
        """Called before each call, with its arguments."""

    def returned(self, outputs: list[Any]) -> None:
        """Called after each call, with its outputs."""

    def recorded(self, graph: Graph) -> None:
        """Called when a device graph has been recorded. Must not raise."""

    def timed(self, phase: str, function: Callable[..., T]) -> Callable[..., T]:
        """Return `function`, or a wrapper that times this phase of a call."""
        return function


@dataclass(frozen=True)
class CompiledProgram:
    """A program and the facts about its graph."""

    program: Program
    inputs: InputInfo
    policy: Policy
    device: torch.device
    name: str
    degradations: Diagnostics = field(default_factory=Diagnostics)
    contract: OutputLayouts | None = None
    """Layouts that the graph requires of its results."""
    observers: tuple[Observer, ...] = ()
    room: MaxSizes = field(default_factory=MaxSizes)
    """Sizes of the largest call, if sizes were announced."""

    @cached_property
    def row(self) -> Device:
        """Device on which the program runs."""
        return get_device(self.device)

    def timed(self, phase: str, function: Callable[..., T]) -> Callable[..., T]:
        """Return `function` with the timers of all observers."""
        for observer in self.observers:
            function = observer.timed(phase, function)
        return function

    def new_stats(self) -> CaptureStats:
        """Return new statistics for the events of this graph."""
        return CaptureStats(self.name)
