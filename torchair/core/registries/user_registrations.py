"""User-defined converters, prototypes, replacements and kernels. They affect the result of a compilation, so
caches include them in their keys. The registries themselves need not be loaded for that.
"""

from __future__ import annotations

from typing import Any

EXTENSIONS: dict[str, Any] = {}
"""Maps the name of each registration to its function or text."""


def extend(name: str, value: Any) -> None:
    """Record a user registration."""
    EXTENSIONS[name] = value


def forget(name: str) -> None:
    """Remove a user registration."""
    EXTENSIONS.pop(name, None)


def kernel_title(op: str, on: str | None = None) -> str:
    """Return the name under which a user's kernel of an IR op is recorded; `on` is its device type, or None
    for all.
    """
    return f"kernel of {op}" + (f" on {on}" if on else "")


def has_user_kernel(op: str, device: str = "") -> bool:
    """Return whether a user registered a kernel of this op for a device."""
    return kernel_title(op) in EXTENSIONS or kernel_title(op, device) in EXTENSIONS
