"""`dtype_promote` under its known import path."""

from __future__ import annotations

from typing import Any

import torch

from torchair.convert.base.operands import promote
from torchair.ge import Tensor

__all__ = ["dtype_promote"]


def dtype_promote(*tensors: Any, target_dtype: int | torch.dtype) -> Any:
    """Each graph tensor or number in this data type (of the IR, or of torch); for one, that one alone."""
    promoted: list[Tensor] = promote(*tensors, to=target_dtype)
    return promoted[0] if len(promoted) == 1 else promoted
