"""Deprecated path of `torchair.backend.dynamo.entry_points`, for scripts and packages from before the move.
It is removed in version 0.3.
"""

import warnings

from torchair.backend.dynamo.entry_points import get_compiler, get_npu_backend, npu, npugraph_ex

__all__ = ["get_compiler", "get_npu_backend", "npu", "npugraph_ex"]

warnings.warn(
    "torchair.backend.doors is deprecated: import from torchair.backend.dynamo.entry_points, or reinstall "
    "torchair so that torch.compile(backend='npu') finds the new path",
    DeprecationWarning,
    stacklevel=2,
)
