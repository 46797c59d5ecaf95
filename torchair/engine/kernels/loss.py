"""Losses and their gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.engine.registry import kernel

aten = torch.ops.aten

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


@kernel("NLLLoss")
def nll_loss(x, target, weight, *, reduction, ignore_index):
    """Return (loss, total weight) of the log-probabilities of the target classes."""
    return aten.nll_loss_forward(x, target.long(), weight, _REDUCTIONS[reduction], ignore_index)


@kernel("NLLLossGrad")
def nll_loss_grad(x, y_grad, target, weight, total_weight, *, reduction, ignore_index):
    """Return the gradient of the log-probabilities."""
    return aten.nll_loss_backward(
        y_grad, x, target.long(), weight, _REDUCTIONS[reduction], ignore_index, total_weight
    )


@kernel("MseLoss")
def mse_loss(predict, label, *, reduction):
    """Return (predict - label)², reduced."""
    return F.mse_loss(predict, label, reduction=reduction)


@kernel("MseLossGrad")
def mse_loss_grad(predict, label, dout, *, reduction):
    """Return the gradient of `predict`."""
    return aten.mse_loss_backward(dout, predict, label, _REDUCTIONS[reduction])


@kernel("SmoothL1LossV2")
def smooth_l1_loss(predict, label, *, sigma, reduction):
    """Squared below `sigma`, absolute above it, reduced."""
    return F.smooth_l1_loss(predict, label, reduction=reduction, beta=sigma)


@kernel("BinaryCrossEntropy")
def binary_cross_entropy(x, y, weight, *, reduction):
    """Return the binary cross entropy of probabilities x and targets y, reduced."""
    return F.binary_cross_entropy(x, y, weight, reduction=reduction)


@kernel("SigmoidCrossEntropyWithLogitsV2")
def binary_cross_entropy_with_logits(predict, target, weight, pos_weight, *, reduction):
    """Return the binary cross entropy of logits, reduced."""
    return F.binary_cross_entropy_with_logits(
        predict, target, weight, reduction=reduction, pos_weight=pos_weight
    )


@kernel("SoftMarginLoss")
def soft_margin_loss(input_x, input_y, *, reduction):
    """log(1 + exp(-y * x)), reduced."""
    return F.soft_margin_loss(input_x, input_y, reduction=reduction)


@kernel("L2Loss")
def l2_loss(x):
    """Half the sum of squares."""
    return x.square().sum() / 2
