"""Load modules at first use, so that `import torchair` is fast."""

from __future__ import annotations

import importlib
import sys
from collections import UserDict
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, TypeVar

import torch

from torchair.core.gc_control import gc_paused
from torchair.core.torch_private.operators.lazy_namespace import LazyOpNamespace

NAMESPACES = {
    "air": "torchair.ops.npu",
    "npu": "torchair.ops.npu",
    "npu_define": "torchair.ops.distributed.collectives",
    "npu_inference": "torchair.ops.npu",
}
"""Namespaces of operators, with the modules that define them."""
BACKENDS = ("npu", "npugraph_ex")
"""Names for `torch.compile(backend=...)`."""
Key = TypeVar("Key")
Row = TypeVar("Row")


class LazyRegistry(UserDict[Key, Row]):
    """A registry that imports the module with its rows at the first lookup. That module defines `COMPLETE` as
    its last statement.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._rows: dict[Key, Row] = {}

    def declare(self, key: Key, row: Row) -> None:
        """Add a built-in row. This imports nothing."""
        assert key not in self._rows, f"{key} is already declared"
        self._rows[key] = row

    @property
    def data(self) -> dict[Key, Row]:  # type: ignore[override]
        """The rows. Other threads wait until all are declared; a module that declares rows sees the earlier
        ones.
        """
        if not hasattr(sys.modules.get(self._module), "COMPLETE"):
            with gc_paused():
                importlib.import_module(self._module)
        return self._rows


def declare_operators() -> None:
    """Make the operators of these namespaces available in `torch.ops` before their modules are imported.
    Operators that other packages define in the same namespaces remain.
    """
    for name, module in NAMESPACES.items():
        known = vars(torch.ops).get(name)
        if module not in sys.modules and not isinstance(known, LazyOpNamespace):
            made = LazyOpNamespace(name, module)
            vars(made).update({} if known is None else vars(known) | {"_module": module})
            setattr(torch.ops, name, made)


def lazy_getattr(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return an attribute of a package from the module that defines it, or a submodule.

    Raises:
        AttributeError: if there is neither.
    """
    if name in homes:
        with gc_paused():
            return getattr(importlib.import_module(homes[name]), name)
    if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
        return importlib.import_module(f"{package}.{name}")
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def is_backend_offered() -> bool:
    """Return whether an installed package registers torchair's backends for `torch.compile`."""
    entry_points_by_name = {entry.name: entry.value for entry in entry_points(group="torch_dynamo_backends")}
    return all(entry_points_by_name.get(name, "").startswith("torchair.") for name in BACKENDS)
