"""An `npu` device on any machine: `torchair.sim.install()`.

Its tensors lie in the memory of another device, whose kernels do the work; everything above kernels (devices,
streams, events, graphs, memory, generators, precision) is what torch and its users see of a device.
"""

from __future__ import annotations

from torchair.sim.install import install, is_installed
from torchair.sim.stream_scheduler import interleaved, memory_checked, races_checked

__all__ = ["install", "interleaved", "is_installed", "memory_checked", "races_checked"]
