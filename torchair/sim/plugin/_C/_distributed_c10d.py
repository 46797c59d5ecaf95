"""Provide process groups and their options."""

from torchair.sim.plugin.hccl import ProcessGroupHCCL

__all__ = ["ProcessGroupHCCL"]
