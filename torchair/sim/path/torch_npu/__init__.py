"""Provide `torch_npu` of the simulated device."""

from __future__ import annotations

import sys

from torchair.sim.autoload import provided

sys.modules[__name__] = provided()
