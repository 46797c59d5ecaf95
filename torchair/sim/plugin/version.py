"""Provide `torch_npu.version`: the supported version of torch, marked as simulated."""

from torch import __version__ as torch_version

__version__ = f"{torch_version.partition('+')[0]}.post0+sim"
git_version = "Unknown"
"""Empty: the simulated device has no commit of the vendor."""
