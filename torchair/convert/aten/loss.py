"""ATen losses that are one GE op; torch itself decomposes the others."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten.index import along, counted
from torchair.convert.base.operands import INT32, INT64, cast, like, promote, size_of
from torchair.convert.base.registry import converter
from torchair.core import dtypes
from torchair.ge.graph import Tensor

aten = torch.ops.aten

_REDUCTIONS = ("none", "mean", "sum")


def wide(x):
    """Cast to float32, in which GE computes the loss (doubles in double)."""
    return x.dtype if dtypes.to_torch(x.dtype) == torch.float64 else ge.DataType.DT_FLOAT


def why_not(self, ignore_index):
    """Return what NLLLoss does not support, or None."""
    if self.rank != 2:
        return "its data is not [batch, classes]"
    return "its ignore_index is symbolic" if isinstance(ignore_index, Tensor) else None


@converter(aten.nll_loss_forward.default)
def nll_loss_forward(self, target, weight, reduction, ignore_index, *, meta_outputs):
    """Return (loss, total weight) of log-probabilities."""
    reason = why_not(self, ignore_index)
    if reason is not None:
        raise NotImplementedError(reason)
    weight = None if weight is None else cast(weight, wide(self))
    output = ge.NLLLoss(
        cast(self, wide(self)),
        cast(target, INT32),
        weight,
        reduction=_REDUCTIONS[reduction],
        ignore_index=ignore_index,
    )
    return [cast(result, spec.dtype) for result, spec in zip(output, meta_outputs, strict=True)]


@converter(aten.nll_loss_backward.default)
def nll_loss_backward(
    grad_output, self, target, weight, reduction, ignore_index, total_weight, *, meta_outputs
):
    """Return the gradient of the log-probabilities; GE requires a weight."""
    reason = why_not(self, ignore_index)
    if reason is not None:
        raise NotImplementedError(reason)
    if weight is None:
        classes = size_of(self, 1)
        shape = [classes] if isinstance(classes, int) else ge.Unsqueeze(classes, axes=[0])
        weight = ge.Fill(shape, cast(1.0, wide(self)))
    x, grad, weight, total = promote(self, grad_output, weight, total_weight, to=wide(self))
    output = ge.NLLLossGrad(
        x,
        grad,
        cast(target, INT32),
        weight,
        total,
        reduction=_REDUCTIONS[reduction],
        ignore_index=ignore_index,
    )
    return cast(output, meta_outputs.dtype)


@converter(aten.mse_loss.default)
def mse_loss(self, target, reduction=1, *, meta_outputs):
    """Return (self - target)², reduced."""
    return ge.MseLoss(*promote(self, target, to=meta_outputs.dtype), reduction=_REDUCTIONS[reduction])


@converter(aten.mse_loss_backward.default)
def mse_loss_backward(grad_output, self, target, reduction, *, meta_outputs):
    """Return the gradient of self."""
    predict, label, grad = promote(self, target, grad_output, to=meta_outputs.dtype)
    return ge.MseLossGrad(predict, label, grad, reduction=_REDUCTIONS[reduction])


def _rows(*tensors):
    """Turn one sample into a batch of one; return it and a function that removes the batch."""
    if tensors[0].rank == 2:
        return tensors, lambda x: x
    return [ge.Reshape(x, [1, -1]) for x in tensors], lambda x: ge.Squeeze(x, axis=[0])


def _scaled(made, grad_output, reduction):
    """Return the gradient of a loss that is summed, averaged or kept for each sample."""
    if _REDUCTIONS[reduction] == "mean":
        made = ge.Div(made, cast(size_of(made, 0), made.dtype))
    grad = cast(grad_output, made.dtype)
    is_per_sample = _REDUCTIONS[reduction] == "none" and grad.rank
    return ge.Mul(made, ge.Unsqueeze(grad, axes=[1]) if is_per_sample else grad)


@converter(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(grad_output, self, target, p, margin, weight=None, reduction=1):
    """Push the target up, and classes within the margin of the target down."""
    (x,), restore = _rows(self)
    if self.rank == 0:
        raise NotImplementedError("a sample has no classes")
    target = ge.Reshape(cast(target, INT64), [-1, 1])
    one, zero = like(1, x), like(0, x)
    near = ge.Add(ge.Sub(like(margin, x), ge.GatherElements(x, target, dim=1)), x)
    is_target = ge.Equal(along(counted(size_of(x, 1)), 1, 2), target)
    is_near = ge.LogicalAnd(ge.Greater(near, zero), ge.LogicalNot(is_target))
    push = one if p == 1 else ge.Mul(like(2, x), near)
    if weight is not None:
        push = ge.Mul(push, ge.GatherV2(cast(weight, x.dtype), target, [0]))
    push = ge.Div(ge.SelectV2(is_near, push, zero), cast(size_of(x, 1), x.dtype))
    own = ge.Neg(ge.ReduceSum(push, [1], keep_dims=True))
    return restore(_scaled(ge.SelectV2(is_target, own, push), grad_output, reduction))


@converter(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    """Compare every target with every non-target class; targets end at the first -1."""
    if self.rank == 0:
        raise NotImplementedError("a sample has no classes")
    (x, target, is_target), restore = _rows(self, cast(target, INT64), is_target)
    none = cast(0, INT64)
    ended = ge.Cumsum(cast(ge.Less(target, none), INT64), 1)
    valid, places = ge.Equal(ended, none), ge.Maximum(target, none)
    zero = like(0, x)
    others = ge.Unsqueeze(ge.Equal(is_target, like(0, is_target)), axes=[1])
    own = ge.Unsqueeze(ge.GatherElements(x, places, dim=1), axes=[2])
    near = ge.Greater(ge.Add(ge.Sub(like(1, x), own), ge.Unsqueeze(x, axes=[1])), zero)
    near = ge.LogicalAnd(ge.LogicalAnd(near, others), ge.Unsqueeze(valid, axes=[2]))
    push = ge.SelectV2(near, ge.Div(like(1, x), cast(size_of(x, 1), x.dtype)), zero)
    output = ge.ScatterElements(
        ge.ReduceSum(push, [1]), places, ge.Neg(ge.ReduceSum(push, [2])), axis=1, reduction="add"
    )
    return restore(_scaled(output, grad_output, reduction))
