"""Provide the parts of `torch_npu._C`, the vendor's extension, that scripts use."""

from torchair.sim.plugin._C import _distributed_c10d

__all__ = ["_distributed_c10d"]
