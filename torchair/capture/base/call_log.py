"""Log the inputs, outputs and host time of each call at level DEBUG.

The level of the log is read once, when a runner is created, so that calls cost nothing at other levels.
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


def call_logger() -> AirLogger | None:
    """Return the log for calls, or None if none is at DEBUG. The log of capture mode comes first."""
    return next((log for log in (capture_logger, logger) if log.isEnabledFor(logging.DEBUG)), None)


class Stopwatch(threading.local):
    """Host time in seconds per phase of the current call of this thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new call."""
        self.seconds: dict[str, float] = dict.fromkeys((KEY, INPUTS, PARAMETERS), 0.0)
        self.began = time.perf_counter()

    def timed(self, phase: str, function: Callable[..., T]) -> Callable[..., T]:
        """Return a wrapper of `function` that adds its time to `phase`."""

        def call(*args: Any) -> T:
            began = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds[phase] += time.perf_counter() - began

        return call

    def text(self) -> str:
        """Return the time of all phases, in microseconds."""
        return ", ".join(f"{phase} {seconds * 1e6:.1f} us" for phase, seconds in self.seconds.items())


class CallLog(Observer):
    """Log each call."""

    watches_calls = True

    def __init__(self, compiled: CompiledProgram, log: AirLogger) -> None:
        self._compiled = compiled
        self._log = log
        self._watch = Stopwatch()

    def called(self, args: Sequence[Any]) -> None:
        self._log_values("input", args)
        self._watch.reset()

    def returned(self, outputs: Sequence[Any]) -> None:
        spent = (time.perf_counter() - self._watch.began) * 1e6
        self._log.debug(
            "%s: host time: %s, whole call %.1f us", self._compiled.name, self._watch.text(), spent
        )
        self._log_values("output", outputs)

    def timed(self, phase: str, function: Callable[..., T]) -> Callable[..., T]:
        return self._watch.timed(phase, function)

    def _log_values(self, what: str, values: Sequence[Any]) -> None:
        measures = self._compiled.policy.statistics and not self._is_capturing()
        for index, value in enumerate(values):
            title = f"{index} {self._compiled.inputs.title(index)}" if what == "input" else str(index)
            self._log.debug("%s: %s %s: %s", self._compiled.name, what, title, describe(value, measures))

    def _is_capturing(self) -> bool:
        """Return whether a capture is running: reading values would break it."""
        row = self._compiled.row
        return row.why_no_graphs() is None and row.is_capturing()


def describe(value: Any, measures: bool) -> str:
    """Return type, shape, dtype, layout and address of a value; with `measures` also statistics of its
    elements.
    """
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value!r}"
    head = f"{type(value).__name__} {tuple(value.shape)} {value.dtype} on {value.device}"
    try:
        layout = "contiguous" if value.is_contiguous() else f"strides {value.stride()}"
        text = f"{head}, {layout}, at {value.data_ptr():#x}"
        return f"{text}, {measure(value)}" if measures else text
    except RuntimeError as error:
        # A sparse tensor has no address, and a quantized tensor has no mean.
        return f"{head} ({str(error).splitlines()[0]})"


def measure(value: torch.Tensor) -> str:
    """Return minimum, maximum, Euclidean norm and mean of the elements. Complex elements count by absolute
    value.
    """
    if not value.numel():
        return "no elements"
    plain = value.detach()
    wide = torch.float64 if plain.device.type == "cpu" else torch.float32
    flat = (plain.abs() if plain.is_complex() else plain).to(wide).flatten()
    numbers = torch.stack([flat.min(), flat.max(), flat.norm(), flat.mean()]).tolist()
    return ", ".join(
        f"{name} {x:.6g}" for name, x in zip(("min", "max", "norm", "mean"), numbers, strict=True)
    )
