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


def kernel_title(op: str, on: str | None = None) -> str:
    """Under which name a user's kernel of an IR op is remembered; `on` is the only device that it is for."""
    return f"kernel of {op}" + (f" on {on}" if on else "")


def has_user_kernel(op: str, device: str = "") -> bool:
    """Has a user given this op a kernel that serves a device?"""
    return kernel_title(op) in EXTENSIONS or kernel_title(op, device) in EXTENSIONS
