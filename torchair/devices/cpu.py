"""The CPU: no graphs. A recording is the bound program."""

from __future__ import annotations

from torchair.devices.base import Device


class Cpu(Device):
    """A library saves the Python between kernels, which recordings save elsewhere."""

    betters = ("native", "inductor")


DEVICE = Cpu("cpu")
