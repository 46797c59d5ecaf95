"""Every test here finds an `npu` device."""

from __future__ import annotations

import torchair.sim

torchair.sim.install()
