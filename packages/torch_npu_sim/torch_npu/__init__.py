"""`torch_npu` of the simulated device: importing it installs the device. It does not replace the
vendor's plug-in, and refuses to be imported where that is installed.
"""

from __future__ import annotations

import sys

from torchair.sim.autoload import provided

sys.modules[__name__] = provided()
