"""`torch_npu._C`: what scripts reach into the vendor's compiled part for."""

from torchair.sim.plugin._C import _distributed_c10d

__all__ = ["_distributed_c10d"]
