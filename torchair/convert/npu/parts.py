"""Ops of the `npu` library that are several IR ops, or an IR op of another family."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import FLOAT, cast
from torchair.convert.registry import converter


@converter("npu.batch_norm_reduce.default")
def batch_norm_reduce(input, eps):
    """The sums and sums of squares of each channel, in float32."""
    x = cast(input, FLOAT)
    dims = [0, *range(2, input.rank)]
    return ge.ReduceSum(x, dims, keep_dims=False), ge.ReduceSum(ge.Square(x), dims, keep_dims=False)
