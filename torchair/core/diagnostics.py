"""Report fallbacks and options without effect: one warning per cause, listed in reports; errors in strict
mode.
"""

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
"""The environment variable that turns every degradation into an error."""

_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?:\s+(?P<code>.*))?$")
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


def is_strict() -> bool:
    """Return whether the environment enables strict mode."""
    return is_on(STRICT)


class Diagnostics:
    """The degradations of one compilation and of the calls of its result."""

    count = 0
    """Number of degradations in this process."""

    def __init__(self, strict: bool = False, of: str = "") -> None:
        self.strict = strict or is_strict()
        self.texts: list[str] = []
        self._of = of  # the first line of the graph

    def __reduce__(self) -> Any:
        """Pickle the settings only: nothing is reported yet in another process."""
        return Diagnostics, (self.strict, self._of)

    def begins_at(self, line: str) -> None:
        """Set the first line of the graph."""
        self._of = line

    def add(self, what: str, *, at: str = "", next: str = "", here: bool = False) -> None:
        """Warn of a degradation, once per cause and process. In strict mode, raise it as an error.

        Args:
            what: what does not happen as requested.
            at: the line of the user's code (`file:line   code`).
            next: what the user can do about it.
            here: name the first line of this graph if `at` is empty.

        Raises:
            Degraded: in strict mode.
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
    """Return the stack level of the code that called this package; of the caller of `add` if that is
    torch.
    """
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return 2 if frame is None or name.partition(".")[0] == "torch" else level
