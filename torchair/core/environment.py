"""Switches that are environment variables."""

from __future__ import annotations

import os

from torchair.core.errors import BadOption

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def is_on(name: str, *, default: bool) -> bool:
    """Is a switch on? Unset or empty it is as by default."""
    value = os.environ.get(name, "").lower()
    if value not in (*_YES, *_NO, ""):
        raise BadOption(f"{name} is neither on nor off", got=repr(value), next="set it to 1 or 0")
    return value in _YES if value else default
