"""The CPU. It has no graphs: programs run directly."""

from __future__ import annotations

from torchair.devices.base import Device


class Cpu(Device):
    """The CPU. A native library saves the Python overhead between kernels, as recordings do on other
    devices.
    """

    betters = ("native", "inductor")


DEVICE = Cpu("cpu")
