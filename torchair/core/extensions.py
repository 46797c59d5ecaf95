"""What users have added to the tables of converters, prototypes and replacements: it changes what a compile
makes, so caches ask for it. The tables themselves need not be loaded for that.
"""

from __future__ import annotations

from typing import Any

EXTENSIONS: dict[str, Any] = {}
"""What it is, and the function or text."""


def extend(name: str, value: Any) -> None:
    """Remember that a user has registered this."""
    EXTENSIONS[name] = value


def forget(name: str) -> None:
    """It is no longer registered."""
    EXTENSIONS.pop(name, None)
