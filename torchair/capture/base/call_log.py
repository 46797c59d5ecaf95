"""What each call got, gave back, and spent on the host, told at DEBUG.

The level of the log is looked at once, when a runner is made: one that tells nothing has nobody to ask.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from torchair.capture.base.compiled_program import INPUTS, KEY, PARAMETERS, CompiledProgram, Observer
from torchair.core.log import AirLogger, capture_logger, logger

T = TypeVar("T")


def listening() -> AirLogger | None:
    """The log that calls are told to: capture mode's, else the other, if one is at DEBUG."""
    return next((log for log in (capture_logger, logger) if log.isEnabledFor(logging.DEBUG)), None)


class Stopwatch(threading.local):
    """Seconds per phase of the call that this thread makes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A new call begins."""
        self.seconds: dict[str, float] = dict.fromkeys((KEY, INPUTS, PARAMETERS), 0.0)
        self.began = time.perf_counter()

    def timed(self, phase: str, function: Callable[..., T]) -> Callable[..., T]:
        """The same function; its time counts for `phase`."""

        def call(*args: Any) -> T:
            began = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds[phase] += time.perf_counter() - began

        return call

    def text(self) -> str:
        """All phases, in microseconds."""
        return ", ".join(f"{phase} {seconds * 1e6:.1f} us" for phase, seconds in self.seconds.items())


class CallLog(Observer):
    """A word about each call."""

    watches_calls = True

    def __init__(self, compiled: CompiledProgram, log: AirLogger) -> None:
        self._of = compiled
        self._log = log
        self._watch = Stopwatch()

    def called(self, args: Sequence[Any]) -> None:
        self._tell("input", args)
        self._watch.reset()

    def returned(self, outputs: Sequence[Any]) -> None:
        spent = (time.perf_counter() - self._watch.began) * 1e6
        self._log.debug("%s: host time: %s, whole call %.1f us", self._of.name, self._watch.text(), spent)
        self._tell("output", outputs)

    def timed(self, phase: str, function: Callable[..., T]) -> Callable[..., T]:
        return self._watch.timed(phase, function)

    def _tell(self, what: str, values: Sequence[Any]) -> None:
        measures = self._of.policy.statistics and not self._is_somebody_capturing()
        for index, value in enumerate(values):
            title = f"{index} {self._of.inputs.title(index)}" if what == "input" else str(index)
            self._log.debug("%s: %s %s: %s", self._of.name, what, title, describe(value, measures))

    def _is_somebody_capturing(self) -> bool:
        """Reading values would break a capture around this call."""
        row = self._of.row
        return row.why_no_graphs() is None and row.is_capturing()


def describe(value: Any, measures: bool) -> str:
    """Type, shape, dtype, layout and address of a value; with `measures`, what its elements are like."""
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value!r}"
    head = f"{type(value).__name__} {tuple(value.shape)} {value.dtype} on {value.device}"
    try:
        layout = "contiguous" if value.is_contiguous() else f"strides {value.stride()}"
        text = f"{head}, {layout}, at {value.data_ptr():#x}"
        return f"{text}, {measure(value)}" if measures else text
    except RuntimeError as error:
        # A sparse tensor has no address, a quantised one no mean.
        return f"{head} ({str(error).splitlines()[0]})"


def measure(value: torch.Tensor) -> str:
    """Smallest, largest, Euclidean norm and mean of the elements, or of their absolute values."""
    if not value.numel():
        return "no elements"
    plain = value.detach()
    wide = torch.float64 if plain.device.type == "cpu" else torch.float32
    flat = (plain.abs() if plain.is_complex() else plain).to(wide).flatten()
    numbers = torch.stack([flat.min(), flat.max(), flat.norm(), flat.mean()]).tolist()
    return ", ".join(
        f"{name} {x:.6g}" for name, x in zip(("min", "max", "norm", "mean"), numbers, strict=True)
    )
