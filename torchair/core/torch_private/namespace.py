"""Namespaces of operators. This module imports nothing that is slow to load."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torch._ops import _OpNamespace as OpNamespace


class LateNamespace(OpNamespace):
    """`torch.ops.<name>`, whose operators are defined by a module that is imported with the first of them."""

    __module__ = OpNamespace.__module__  # by which operators are found again

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and self._module not in sys.modules:
            importlib.import_module(self._module)
        return super().__getattr__(name)
