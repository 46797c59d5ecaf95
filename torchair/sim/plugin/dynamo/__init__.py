"""`torch_npu.dynamo`: where the vendor's plug-in keeps its copy of this package."""

from __future__ import annotations

import torchair

__all__ = ["torchair"]
