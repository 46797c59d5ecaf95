"""The C++ part of the simulated device: built once, loaded from then on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from torchair.core.errors import CannotBuild
from torchair.core.extension import Extension
from torchair.core.log import told_if_slow

FOLDER = Path(__file__).with_name("shim")
EXTENSION = Extension("torchair_sim", FOLDER / "shim.cpp", tuple(sorted(FOLDER.glob("*.h"))))


@cache
def shim() -> ModuleType:
    """The extension; the first time on a machine it is compiled, which takes a minute."""
    try:
        path = EXTENSION.library()
        if not path.exists():
            with told_if_slow("building the simulated npu device", "once for each version of torch"):
                EXTENSION.build(path)
        return _loaded(path)
    except Exception as error:
        raise CannotBuild(
            f"the simulated npu device cannot be built: {error}",
            next="install a C++ compiler (g++ or clang++)",
        ) from error


def _loaded(path: Path) -> ModuleType:
    try:
        return EXTENSION.load(path)
    except ImportError:  # damaged
        EXTENSION.remove_damaged(path)
        EXTENSION.build(path)
        return EXTENSION.load(path)
