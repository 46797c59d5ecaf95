"""What torch calls when it is imported, wherever torchair is installed."""

from __future__ import annotations

import importlib
import os


def autoload() -> None:
    """Where TORCHAIR_SIM_NPU asks for the simulated device, torchair brings it; else nothing is imported."""
    if os.environ.get("TORCHAIR_SIM_NPU", "0") not in ("", "0"):
        importlib.import_module("torchair")
