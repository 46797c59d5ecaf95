"""Simulate an `npu` device on any machine: `torchair.sim.install()`.

Its tensors are in the memory of another device, which also runs the kernels. The simulation provides
everything above kernels that torch and user code see of a device: devices, streams, events, graphs, memory,
generators, precision.
"""

from __future__ import annotations

from torchair.sim.install import install, is_installed
from torchair.sim.stream_scheduler import interleaved, memory_checked, races_checked

__all__ = ["install", "interleaved", "is_installed", "memory_checked", "races_checked"]
