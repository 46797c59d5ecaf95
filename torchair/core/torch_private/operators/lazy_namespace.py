"""Namespaces of operators. This module imports nothing that is slow to load."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torch._ops import _OpNamespace as OpNamespace


class LazyOpNamespace(OpNamespace):
    """`torch.ops.<name>`, whose operators are defined by a module that is imported with the first that is
    not known yet.
    """

    __module__ = OpNamespace.__module__  # by which operators are found again

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or self._module in sys.modules or self._is_being_loaded():
                raise
        importlib.import_module(self._module)
        return getattr(self, name)  # the very object that the module has, if it looked at it

    def _is_being_loaded(self) -> bool:
        """The package around the module defines operators, too, and torch asks whether they are there."""
        package = sys.modules.get(self._module.rpartition(".")[0])
        return bool(getattr(getattr(package, "__spec__", None), "_initializing", False))
