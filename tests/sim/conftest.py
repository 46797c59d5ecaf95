"""The tests below `inside` need a process that has the simulated device from its start to its end."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TORCHAIR_SIM_INSIDE") else ["inside"]
