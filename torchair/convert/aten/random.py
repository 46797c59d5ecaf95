"""ATen's random ops, as far as they need no random numbers."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import BOOL, cast, shape_of
from torchair.convert.registry import converter

aten = torch.ops.aten


@converter(aten.native_dropout.default)
def native_dropout(input, p, train=None):
    """Without training nothing is dropped. With it the op is taken apart around the random numbers."""
    if train or train is None:
        raise NotImplementedError("it draws random numbers")
    return ge.TensorMove(input), ge.Fill(shape_of(input), cast(True, BOOL))


@converter(aten.native_dropout_backward.default)
def native_dropout_backward(grad_output, mask, scale):
    """The gradient of what was kept, scaled."""
    return ge.Muls(ge.Mul(grad_output, cast(mask, grad_output.dtype)), value=float(scale))
