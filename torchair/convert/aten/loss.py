"""ATen losses that are one GE op; the others are taken apart by torch itself."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import INT32, cast, promote, size_of
from torchair.convert.registry import converter
from torchair.core import dtypes
from torchair.ge.graph import Tensor

aten = torch.ops.aten

_REDUCTIONS = ("none", "mean", "sum")


def wide(x):
    """GE computes the loss in float32 (doubles in double)."""
    return x.dtype if dtypes.to_torch(x.dtype) == torch.float64 else ge.DataType.DT_FLOAT


def why_not(self, ignore_index):
    """What NLLLoss cannot say."""
    if self.rank != 2:
        return "its data is not [batch, classes]"
    return "its ignore_index is a symbol" if isinstance(ignore_index, Tensor) else None


@converter(aten.nll_loss_forward.default)
def nll_loss_forward(self, target, weight, reduction, ignore_index, *, meta_outputs):
    """(loss, total weight) of log-probabilities."""
    reason = why_not(self, ignore_index)
    if reason is not None:
        raise NotImplementedError(reason)
    weight = None if weight is None else cast(weight, wide(self))
    made = ge.NLLLoss(
        cast(self, wide(self)),
        cast(target, INT32),
        weight,
        reduction=_REDUCTIONS[reduction],
        ignore_index=ignore_index,
    )
    return [cast(result, spec.dtype) for result, spec in zip(made, meta_outputs, strict=True)]


@converter(aten.nll_loss_backward.default)
def nll_loss_backward(
    grad_output, self, target, weight, reduction, ignore_index, total_weight, *, meta_outputs
):
    """The gradient of the log-probabilities; GE wants a weight."""
    reason = why_not(self, ignore_index)
    if reason is not None:
        raise NotImplementedError(reason)
    if weight is None:
        classes = size_of(self, 1)
        shape = [classes] if isinstance(classes, int) else ge.Unsqueeze(classes, axes=[0])
        weight = ge.Fill(shape, cast(1.0, wide(self)))
    x, grad, weight, total = promote(self, grad_output, weight, total_weight, to=wide(self))
    made = ge.NLLLossGrad(
        x,
        grad,
        cast(target, INT32),
        weight,
        total,
        reduction=_REDUCTIONS[reduction],
        ignore_index=ignore_index,
    )
    return cast(made, meta_outputs.dtype)


@converter(aten.mse_loss.default)
def mse_loss(self, target, reduction=1, *, meta_outputs):
    """(self - target)², reduced."""
    return ge.MseLoss(*promote(self, target, to=meta_outputs.dtype), reduction=_REDUCTIONS[reduction])


@converter(aten.mse_loss_backward.default)
def mse_loss_backward(grad_output, self, target, reduction, *, meta_outputs):
    """The gradient of self."""
    predict, label, grad = promote(self, target, grad_output, to=meta_outputs.dtype)
    return ge.MseLossGrad(predict, label, grad, reduction=_REDUCTIONS[reduction])
