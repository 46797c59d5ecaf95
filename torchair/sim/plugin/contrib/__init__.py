"""`torch_npu.contrib`: layers and functions in the form that the hardware likes. Importing `transfer_to_npu`
turns scripts for CUDA into scripts for the device.
"""

from torchair.sim.plugin.contrib import function, module
from torchair.sim.plugin.contrib.function import *  # noqa: F403
from torchair.sim.plugin.contrib.module import *  # noqa: F403

__all__ = [*function.__all__, *module.__all__, "function", "module"]
