"""Our torch.library ops, each with its fake (shape) function; `torchair.ops.npu_…` is an op of the `npu`
library.
"""

from __future__ import annotations

from typing import Any

from torchair.ops import npu


def __getattr__(name: str) -> Any:
    """`torchair.ops.npu_rms_norm` is `torch.ops.npu.npu_rms_norm`."""
    return npu.find(name)


__all__ = ["npu"]
