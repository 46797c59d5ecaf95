"""Detect whether the vendor's plug-in `torch_npu` is installed, or only the simulated device's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

PLUGIN = "torch_npu"
MARK = "simulated.txt"
"""A file in every folder `torch_npu` of the simulated device."""
SIMULATED = "__simulated__"
"""An attribute of the simulated device's module."""


def real_plugin() -> str | None:
    """Return the location of the vendor's plug-in if it is installed. Does not import it."""
    loaded = sys.modules.get(PLUGIN)
    if (
        loaded is not None
        and not hasattr(loaded, SIMULATED)
        and not _is_marked(getattr(loaded, "__path__", ()))
    ):
        return getattr(loaded, "__file__", None) or PLUGIN
    for spec in _specs():
        if not _is_marked(spec.submodule_search_locations or ()) and spec.origin is not None:
            return spec.origin
    try:
        # Both are in one folder: one has overwritten the other.
        return str(distribution(PLUGIN).locate_file(PLUGIN))
    except PackageNotFoundError:
        return None


def _is_marked(places: Iterable[str]) -> bool:
    return any(Path(place, MARK).exists() for place in places)


def _specs() -> Iterator[Any]:
    """Yield all packages of that name: the one that is imported, and those it hides."""
    if PLUGIN not in sys.modules:
        found = importlib.util.find_spec(PLUGIN)
        if found is not None:
            yield found
    for place in sys.path:
        found = PathFinder.find_spec(PLUGIN, [place])
        if found is not None:
            yield found
