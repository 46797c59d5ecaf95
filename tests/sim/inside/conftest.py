"""Every test here finds an `npu` device. What torch calls slow in its table of operators is tried too."""

from __future__ import annotations

import os

import torchair.sim

os.environ.setdefault("PYTORCH_TEST_WITH_SLOW", "1")  # before the table is imported
torchair.sim.install(backing=os.environ.get("TORCHAIR_SIM_BACKING") or "cpu")
