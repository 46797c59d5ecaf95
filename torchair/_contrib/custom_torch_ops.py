"""The library `npu_inference`: its ops are there once torchair is imported, `torch.ops.npu_inference.…`."""

from torchair.ops import npu

__all__ = ["NAMES"]

NAMES = tuple(sorted(name.split(".")[1] for name in npu.schemas() if name.startswith("npu_inference.")))
"""The ops of that library."""
