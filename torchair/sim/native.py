"""Build and load the C++ part of the simulated device."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from torchair.core.errors import first_line
from torchair.core.log import warn_if_slow
from torchair.core.native.cpp_extension import Extension
from torchair.sim.python_device import PythonShim

FOLDER = Path(__file__).with_name("shim")
EXTENSION = Extension("torchair_sim", FOLDER / "shim.cpp", tuple(sorted(FOLDER.glob("*.h"))))


@cache
def shim() -> Any:
    """Return the extension, compiled once per machine (a minute), or else its Python replacement."""
    try:
        path = EXTENSION.library()
        if not path.exists():
            with warn_if_slow("building the simulated npu device", "once for each version of torch"):
                EXTENSION.build(path)
        return _loaded(path)
    except Exception as error:
        return PythonShim(first_line(error), error)


def _loaded(path: Path) -> ModuleType:
    try:
        return EXTENSION.load(path)
    except ImportError:  # damaged
        EXTENSION.remove_damaged(path)
        EXTENSION.build(path)
        return EXTENSION.load(path)
