"""Install the simulated device on request: `import torch_npu`, or TORCHAIR_SIM_NPU in the environment."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from torchair.core.environment import text_of
from torchair.core.errors import BadOption
from torchair.core.registries.vendor_plugin import PLUGIN
from torchair.sim.install import install, is_installed
from torchair.sim.module_aliases import ALIASES

DEVICES = "TORCHAIR_SIM_DEVICES"
BACKING = "TORCHAIR_SIM_BACKING"
MEMORY = "TORCHAIR_SIM_MEMORY"


def provided() -> ModuleType:
    """Install the device from the environment unless there is one; returns the module `torch_npu`."""
    if not is_installed():
        devices, memory = _number(DEVICES, text_of(DEVICES)), _number(MEMORY, text_of(MEMORY))
        install(devices, text_of(BACKING), memory=memory)
    sys.modules[PLUGIN] = module = importlib.import_module(ALIASES[PLUGIN])
    return module


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadOption(f"{name} must be a number", got=repr(text)) from None
