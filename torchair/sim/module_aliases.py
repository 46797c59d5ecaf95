"""Modules of the simulated device under the names that users import them by: `torch_npu`, `torch.npu` and
what is below them. They are the same objects under both names.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from torchair.core.registries.vendor_plugin import PLUGIN

HOMES = {
    f"{PLUGIN}.dynamo.torchair": "torchair",
    f"{PLUGIN}.npu": "torchair.sim.npu",
    PLUGIN: "torchair.sim.plugin",
    "torch.npu": "torchair.sim.npu",
}
"""Where the modules of a name are, the longer of two names first."""


class Names(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds them when they are imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        home = home_of(fullname)
        if home is None or importlib.util.find_spec(home) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module itself, which stays what it is."""
        home = home_of(spec.name)
        assert home is not None, "it was found"
        module = importlib.import_module(home)
        spec.loader_state = (module.__spec__, getattr(module, "__path__", None))
        return module

    def exec_module(self, module: Any) -> None:
        """It ran when it was imported; Python's import has given it the spec of its other name."""
        spec = module.__spec__
        own, path = spec.loader_state
        module.__spec__ = own
        if path is None:
            vars(module).pop("__path__", None)
        else:
            module.__path__ = path


def home_of(name: str) -> str | None:
    """`torch_npu.contrib` -> `torchair.sim.plugin.contrib`."""
    for alias, home in HOMES.items():
        if name == alias or name.startswith(f"{alias}."):
            return home + name.removeprefix(alias)
    return None


def missing(module: str, name: str, *next_steps: str) -> AttributeError:
    """What a module lacks, told by the name that users know it by."""
    home = max((home for home in HOMES.values() if f"{module}.".startswith(f"{home}.")), key=len)
    known = next(alias for alias in HOMES if HOMES[alias] == home) + module.removeprefix(home)
    steps = "; ".join([f"dir({known}) lists what it has", *next_steps])
    return AttributeError(f"module {known!r} of the simulated device has no attribute {name!r}: {steps}")


def tell_missing(package: str) -> None:
    """From now on the modules below a package tell what they lack."""
    for module, loaded in list(sys.modules.items()):
        if module.startswith(f"{package}.") and "__getattr__" not in vars(loaded):
            vars(loaded)["__getattr__"] = partial(_refuse, module)


def _refuse(module: str, name: str) -> NoReturn:
    raise missing(module, name)


def give_names() -> None:
    """From now on they are found."""
    if not any(isinstance(finder, Names) for finder in sys.meta_path):
        sys.meta_path.insert(0, Names())
