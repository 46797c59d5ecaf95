"""Operator namespaces that load on first use. This module imports nothing that is slow to load."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torch._ops import _OpNamespace as OpNamespace


class LazyOpNamespace(OpNamespace):
    """The namespace `torch.ops.<name>`. Its operators are defined by a module that is imported at the first
    access to an unknown operator.
    """

    __module__ = OpNamespace.__module__  # used to find operators again

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
        return getattr(self, name)  # the same object that the module uses

    def _is_being_loaded(self) -> bool:
        """Return whether the package around the module is being imported: it defines operators, too, and
        torch checks for them.
        """
        package = sys.modules.get(self._module.rpartition(".")[0])
        return bool(getattr(getattr(package, "__spec__", None), "_initializing", False))
