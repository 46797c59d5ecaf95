"""`torch_npu.version`: the version of torch that it is for, with a mark that it is simulated."""

from torch import __version__ as torch_version

__version__ = f"{torch_version.partition('+')[0]}.post0+sim"
git_version = "Unknown"
"""It was built from no commit of the vendor's."""
