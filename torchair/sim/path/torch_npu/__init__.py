"""`torch_npu` of the simulated device."""

from __future__ import annotations

import sys

from torchair.sim.provide import provided

__simulated__ = True
sys.modules[__name__] = provided()
