"""What torch calls when it is imported, as for every device that is installed as a plug-in."""

from __future__ import annotations

import importlib
import os

SWITCH = "TORCHAIR_SIM_NPU"


def autoload() -> None:
    """The device is there from the start where TORCHAIR_SIM_NPU=1; else nothing is imported."""
    if os.environ.get(SWITCH, "").lower() in ("1", "true", "yes", "on"):
        importlib.import_module("torch_npu")
