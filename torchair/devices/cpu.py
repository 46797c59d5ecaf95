"""The CPU: no graphs. A recording is the bound program."""

from __future__ import annotations

from torchair.devices.base import Device

DEVICE = Device("cpu")
