"""Lazy imports of packages that take long to import."""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """A module that is imported at the first access to an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
