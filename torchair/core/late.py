"""What is loaded when it is first asked for, so that `import torchair` costs next to nothing."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import torch

from torchair.core.torch_private.namespace import LateNamespace

NAMESPACES = ("air", "npu", "npu_inference")
"""Of the operators in `torchair.ops`."""
BACKENDS = ("npu", "npugraph_ex")
"""Names for `torch.compile(backend=...)`."""


def declare_operators(module: str) -> None:
    """`torch.ops` finds the operators of this module, though it is not imported yet, beside those that others
    have defined in the same namespaces.
    """
    for name in NAMESPACES:
        known = vars(torch.ops).get(name)
        if module not in sys.modules and not isinstance(known, LateNamespace):
            made = LateNamespace(name, module)
            vars(made).update({} if known is None else vars(known) | {"_module": module})
            setattr(torch.ops, name, made)


def attribute(package: str, homes: Mapping[str, str], name: str) -> Any:
    """What a package calls `name`: an attribute of the module that is its home, or a sub-module."""
    if name in homes:
        with _uncollected():
            return getattr(importlib.import_module(homes[name]), name)
    if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
        return importlib.import_module(f"{package}.{name}")
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Modules are no garbage: a fifth of the time it takes to load ours would go into looking for some."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def is_backend_offered() -> bool:
    """Does an installed package offer our backends to `torch.compile`?"""
    offered = {entry.name: entry.value for entry in entry_points(group="torch_dynamo_backends")}
    return all(offered.get(name, "").startswith("torchair.") for name in BACKENDS)
