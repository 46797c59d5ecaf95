"""Groups of processes, with their options."""

from torchair.sim.plugin.hccl import ProcessGroupHCCL

__all__ = ["ProcessGroupHCCL"]
