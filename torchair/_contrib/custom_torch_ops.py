"""Provide the library `npu_inference`. `import torchair` registers its ops, `torch.ops.npu_inference.…`."""

from torchair.ops import npu

__all__ = ["NAMES"]

NAMES = tuple(sorted(name.split(".")[1] for name in npu.schemas() if name.startswith("npu_inference.")))
"""The ops of the library."""
