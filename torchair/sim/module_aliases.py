"""Provide the modules of the simulated device under their public names: `torch_npu`, `torch.npu` and their
submodules. Both names refer to the same module objects.
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

ALIASES = {
    f"{PLUGIN}.dynamo.torchair": "torchair",
    f"{PLUGIN}.npu": "torchair.sim.npu",
    PLUGIN: "torchair.sim.plugin",
    "torch.npu": "torchair.sim.npu",
}
"""Public prefix and the package of its modules, the longer of two prefixes first."""


class AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find these modules on import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        real = real_name(fullname)
        if real is None or importlib.util.find_spec(real) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the existing module."""
        real = real_name(spec.name)
        assert real is not None, "the finder found this module"
        module = importlib.import_module(real)
        spec.loader_state = (module.__spec__, getattr(module, "__path__", None))
        return module

    def exec_module(self, module: Any) -> None:
        """Restore the original spec: the module ran before, and Python's import replaced its spec."""
        spec = module.__spec__
        own, path = spec.loader_state
        module.__spec__ = own
        if path is None:
            vars(module).pop("__path__", None)
        else:
            module.__path__ = path


def real_name(name: str) -> str | None:
    """Return the real name: `torch_npu.contrib` -> `torchair.sim.plugin.contrib`."""
    for alias, real in ALIASES.items():
        if name == alias or name.startswith(f"{alias}."):
            return real + name.removeprefix(alias)
    return None


def missing(module: str, name: str, *next_steps: str) -> AttributeError:
    """Return the error for a missing attribute, with the public name of the module."""
    real = max((real for real in ALIASES.values() if f"{module}.".startswith(f"{real}.")), key=len)
    known = next(alias for alias in ALIASES if ALIASES[alias] == real) + module.removeprefix(real)
    steps = "; ".join([f"dir({known}) lists its attributes", *next_steps])
    return AttributeError(f"module {known!r} of the simulated device has no attribute {name!r}: {steps}")


def report_missing(package: str) -> None:
    """Make modules below a package report missing attributes by their public name."""
    for module, loaded in list(sys.modules.items()):
        if module.startswith(f"{package}.") and "__getattr__" not in vars(loaded):
            vars(loaded)["__getattr__"] = partial(_refuse, module)


def _refuse(module: str, name: str) -> NoReturn:
    raise missing(module, name)


def install_aliases() -> None:
    """Install the finder."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
