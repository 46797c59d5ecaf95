"""What makes a run less than promised: one warning per cause, kept for reports; in strict mode an error."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from torchair.core.environment import is_on
from torchair.core.errors import Degraded, DegradedWarning
from torchair.core.log import logger

STRICT = "TORCHAIR_STRICT"
"""The environment variable that makes every degradation an error."""

_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?:\s+(?P<code>.*))?$")
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


def is_strict() -> bool:
    """Does the environment ask for strict mode?"""
    return is_on(STRICT)


class Diagnostics:
    """What was less than promised in one compilation and in the calls of what it made."""

    count = 0
    """How often something was, in this process."""

    def __init__(self, strict: bool = False, of: str = "") -> None:
        self.strict = strict or is_strict()
        self.texts: list[str] = []
        self._of = of  # the line that the graph begins with

    def __reduce__(self) -> Any:
        """In another process nothing was told yet."""
        return Diagnostics, (self.strict, self._of)

    def begins_at(self, line: str) -> None:
        """The graph is now one that begins with this line."""
        self._of = line

    def add(self, what: str, *, at: str = "", next: str = "", here: bool = False) -> None:
        """Tell it: `at` is the line of the user's code (`file:line   code`), `here` that it is about this
        graph, `next` what to do about it. A cause is told once in a process; in strict mode it is raised.
        """
        Diagnostics.count += 1
        at, begins = (self._of, "in the graph that begins at ") if here and not at else (at, "")
        place = _PLACE.match(at)
        text = what
        if place:
            line = f"{os.path.basename(place['file'])}:{place['line']}  {place['code'] or ''}".rstrip()
            text += f" ({begins}{line})"
        text += f"; {next}" if next else ""
        if text not in self.texts:
            self.texts.append(text)
        if self.strict:
            raise Degraded(what, at=at, next=next)
        if not logger.is_new(text):
            return
        logger.warning("%s", text)
        if place:
            warnings.warn_explicit(text, DegradedWarning, place["file"], int(place["line"]))
        else:
            warnings.warn(text, DegradedWarning, stacklevel=_level())


def _level() -> int:
    """How far up the caller of this package is; the caller of `add` where torch is in between."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return 2 if frame is None or name.partition(".")[0] == "torch" else level
