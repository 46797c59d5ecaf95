"""Elementwise comparisons, logic, bits and selection."""

from __future__ import annotations

import torch

from torchair.engine.registry import Value, kernel, torch_kernels
from torchair.ge.host import Host

torch_kernels({
    "Equal": torch.eq, "NotEqual": torch.ne, "Less": torch.lt, "LessEqual": torch.le, "Greater": torch.gt,
    "GreaterEqual": torch.ge, "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "LeftShift": torch.bitwise_left_shift,
    "RightShift": torch.bitwise_right_shift,
}, numbers=True)  # fmt: skip
torch_kernels({
    "LogicalAnd": torch.logical_and, "LogicalOr": torch.logical_or, "LogicalNot": torch.logical_not,
    "Invert": torch.bitwise_not, "IsInf": torch.isinf, "IsNan": torch.isnan, "IsFinite": torch.isfinite,
    "IsPosInf": torch.isposinf, "IsNegInf": torch.isneginf, "SelectV2": torch.where,
})  # fmt: skip


@kernel("MaskedFill")
def masked_fill(x, mask, value: Value):
    """Return `value` where the mask is set; the mask broadcasts to x.

    `torch.masked_fill` with a tensor value synchronizes with the device, which cannot be recorded.
    """
    if isinstance(value, Host):
        return torch.masked_fill(x, mask, value.items[0])
    return torch.where(mask, value.to(x.dtype), x)
