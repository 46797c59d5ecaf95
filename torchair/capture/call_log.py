"""Runners that tell at DEBUG what each call got, gave back, and spent on the host.

The level of the log is looked at once, when a runner is made. A runner that tells nothing is of another
class and does nothing for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from torchair.capture.record import Recording
from torchair.capture.replay import Entry, ReplayRunner
from torchair.capture.runner import BoundRunner, FastPath, Runner, SpecialRunner
from torchair.core.log import capture_logger as logger
from torchair.devices import device_row

T = TypeVar("T")
KEY, INPUTS, PARAMETERS = "key generation", "input processing", "parameter update"


def is_telling() -> bool:
    """Are calls to be told?"""
    return logger.isEnabledFor(logging.DEBUG)


class Stopwatch(threading.local):
    """Seconds per phase of the call that this thread makes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A new call begins."""
        self.seconds: dict[str, float] = dict.fromkeys((KEY, INPUTS, PARAMETERS), 0.0)

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


class Telling(Runner):
    """Any runner, with a word about each call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch = Stopwatch()

    @property
    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        return self

    def fast_path(self, written: bytes) -> FastPath | None:
        return None

    def __call__(self, args: list[Any]) -> list[Any]:
        self._tell("input", args)
        self._watch.reset()
        began = time.perf_counter()
        outputs = super().__call__(args)
        spent = (time.perf_counter() - began) * 1e6
        logger.debug("%s: host time: %s, whole call %.1f us", self.name, self._watch.text(), spent)
        self._tell("output", outputs)
        return outputs

    def _pack(self, args: list[Any]) -> None:
        self._watch.timed(PARAMETERS, super()._pack)(args)

    def _tell(self, what: str, values: Sequence[Any]) -> None:
        measures = self.policy.statistics and not self._is_somebody_capturing()
        for index, value in enumerate(values):
            title = f"{index} {self.inputs.title(index)}" if what == "input" else str(index)
            logger.debug("%s: %s %s: %s", self.name, what, title, describe(value, measures))

    def _is_somebody_capturing(self) -> bool:
        """Reading values would break a capture around this call."""
        row = device_row(self.device)
        return row.why_no_graphs() is None and row.is_capturing()


class TellingKeys(Telling):
    """A runner that asks for a key on each call."""

    _key: Callable[[list[Any]], Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._key = self._watch.timed(KEY, self._key)


class TellingBoundRunner(TellingKeys, BoundRunner):
    """Counts keys, and tells."""


class TellingSpecialRunner(TellingKeys, SpecialRunner):
    """Runs directly, with a program per key, and tells."""


class TellingReplayRunner(TellingKeys, ReplayRunner):
    """Records and replays, and tells."""

    def _recorded(self, entry: Entry, args: list[Any], private: bool) -> Recording:
        made = super()._recorded(entry, args, private)
        made.statics.fill = self._watch.timed(INPUTS, made.statics.fill)
        return made


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
