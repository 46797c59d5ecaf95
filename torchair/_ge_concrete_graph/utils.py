"""Re-export `dtype_promote` under its documented import path."""

from __future__ import annotations

from typing import Any

import torch

from torchair.convert.base.operands import promote
from torchair.ge import Tensor

__all__ = ["dtype_promote"]


def dtype_promote(*tensors: Any, target_dtype: int | torch.dtype) -> Any:
    """Cast graph tensors and numbers to a data type.

    Args:
        *tensors: Graph tensors or numbers.
        target_dtype: The data type, of the IR or of torch.

    Returns:
        A list of graph tensors, or a single graph tensor for one argument.
    """
    promoted: list[Tensor] = promote(*tensors, to=target_dtype)
    return promoted[0] if len(promoted) == 1 else promoted
