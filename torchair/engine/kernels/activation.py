"""Activations and their gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.core.kernel_params import Operand
from torchair.engine.registry import kernel, torch_kernels

aten = torch.ops.aten

torch_kernels({
    "Relu": torch.relu, "Relu6": F.relu6, "Sigmoid": torch.sigmoid, "Gelu": F.gelu, "HardSwish": F.hardswish,
    "HardSwishGrad": aten.hardswish_backward, "Mish": F.mish, "Selu": F.selu, "Softplus": F.softplus,
    "Softsign": F.softsign, "LogSigmoid": F.logsigmoid,
})  # fmt: skip


@kernel("ReluGrad")
def relu_grad(gradients, features):
    """Return the gradient where the input was positive."""
    return aten.threshold_backward(gradients, features, 0)


@kernel("ThresholdV2")
def threshold(x, threshold: Operand, value: Operand):
    """`value` where x is not above the threshold; a NaN stays."""
    return torch.where(x <= threshold, 0 if value is None else value, x)


@kernel("ThresholdV2D")
def threshold_d(x, *, threshold, value):
    """ThresholdV2 with its numbers as attributes."""
    return torch.where(x <= threshold, value, x)


@kernel("Relu6Grad")
def relu6_grad(gradients, features):
    """Return the gradient where the input was between 0 and 6."""
    return aten.hardtanh_backward(gradients, features, 0, 6)


@kernel("ThresholdGradV2D")
def threshold_grad(gradients, features, *, threshold):
    """Return the gradient where the input was above the threshold."""
    return aten.threshold_backward(gradients, features, threshold)


@kernel("Swish")
def swish(x, *, scale):
    """x * sigmoid(scale * x)."""
    return F.silu(x) if scale == 1 else x * torch.sigmoid(scale * x)


@kernel("SwishGrad")
def swish_grad(grad, x, y, *, scale):
    """Return the gradient of Swish; `y`, the result of Swish, is not needed."""
    if scale == 1:
        return aten.silu_backward(grad, x)
    gate = torch.sigmoid(scale * x)
    return grad * gate * (1 + scale * x * (1 - gate))


@kernel("FastGelu")
def fast_gelu(x):
    """x * sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


@kernel("GeluV2")
def gelu(x, *, approximate):
    """x * Phi(x), with erf or the tanh form."""
    return F.gelu(x, approximate=approximate)


@kernel("GeluGradV2")
def gelu_grad(dy, x, *, approximate):
    """Return the gradient of GeluV2."""
    return aten.gelu_backward(dy, x, approximate=approximate)


@kernel("GeluGrad")
def gelu_grad_erf(dy, x, y):
    """Return the gradient of Gelu; `y`, the result of Gelu, is not needed."""
    return aten.gelu_backward(dy, x)


@kernel("HardSigmoid")
def hard_sigmoid(input_x, *, alpha, beta):
    """Clamp alpha * x + beta to 0 … 1."""
    if _default_slope(alpha, beta):
        return F.hardsigmoid(input_x)
    return torch.clamp(alpha * input_x + beta, 0, 1)


@kernel("HardSigmoidGrad")
def hard_sigmoid_grad(grads, input_x, *, alpha, beta):
    """Return the gradient of HardSigmoid."""
    if _default_slope(alpha, beta):
        return aten.hardsigmoid_backward(grads, input_x)
    inner = alpha * input_x + beta
    return torch.where((inner > 0) & (inner < 1), grads * alpha, 0)


def _default_slope(alpha: float, beta: float) -> bool:
    """Return whether the slope is 1/6, which the catalogue writes with eight digits."""
    return abs(alpha - 1 / 6) < 1e-7 and beta == 0.5


@kernel("SigmoidGrad")
def sigmoid_grad(y, dy, *, complex_conj):
    """Return the gradient of Sigmoid from its result."""
    return aten.sigmoid_backward(dy, y)


@kernel("TanhGrad")
def tanh_grad(y, dy, *, complex_conj):
    """Return the gradient of Tanh from its result."""
    return aten.tanh_backward(dy, y)


@kernel("MishGrad")
def mish_grad(grad, x, tanhx):
    """Return the gradient of Mish; `tanhx` would only save time."""
    return aten.mish_backward(grad, x)


@kernel("Elu")
def elu(x, *, alpha, scale, input_scale):
    """scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))."""
    return aten.elu(x, alpha, scale, input_scale)


@kernel("EluGradV2")
def elu_grad(grads, activations, *, alpha, scale, input_scale, is_result):
    """Return the gradient of Elu, from its input or its result."""
    return aten.elu_backward(grads, alpha, scale, input_scale, is_result, activations)


@kernel("CeluV2")
def celu(x, *, alpha):
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    return F.celu(x, alpha)


@kernel("LeakyRelu")
def leaky_relu(x, *, negative_slope):
    """Return x, or negative_slope * x below zero."""
    return F.leaky_relu(x, negative_slope)


@kernel("LeakyReluGrad")
def leaky_relu_grad(gradients, features, *, negative_slope):
    """Return the gradient of LeakyRelu from its input."""
    return aten.leaky_relu_backward(gradients, features, negative_slope, False)


@kernel("PRelu")
def prelu(x, weight):
    """Return x, or weight * x below zero; there is one weight, or one per channel (dim 1)."""
    slope = weight.reshape((1, -1) + (1,) * (x.ndim - 2)) if x.ndim > 1 else weight.reshape(-1)
    return torch.where(x > 0, x, slope * x)


@kernel("PReluGrad")
def prelu_grad(grads, features, weights):
    """Return the gradients of PRelu's input and weights; weights may also have a shape that broadcasts."""
    x, slope = features, weights
    if weights.ndim < max(x.ndim, 1):
        slope = weights.reshape((1, -1) + (1,) * (x.ndim - 2)) if x.ndim > 1 else weights.reshape(-1)
    of_weights = torch.where(x > 0, 0.0, x * grads).sum_to_size(slope.shape)
    return torch.where(x > 0, grads, slope * grads), of_weights.reshape(weights.shape)


@kernel("GLU")
def glu(x, *, dim):
    """Return the first half times the sigmoid of the second."""
    return F.glu(x, dim)


@kernel("GLUGrad")
def glu_grad(y_grad, x, *, dim):
    """Return the gradient of GLU."""
    return aten.glu_backward(y_grad, x, dim)


@kernel("LogSigmoidGrad")
def log_sigmoid_grad(grads, features):
    """Return the gradient of LogSigmoid."""
    return aten.log_sigmoid_backward(grads, features, torch.exp(-features.abs()))


@kernel("HardtanhGrad")
def hardtanh_grad(result, grad, *, min_val, max_val):
    """Return the gradient where the value was strictly between the bounds."""
    return aten.hardtanh_backward(grad, result, min_val, max_val)


@kernel("SoftplusV2")
def softplus(x, *, beta, threshold):
    """log(1 + exp(beta * x)) / beta; x itself above the threshold."""
    return F.softplus(x, beta, threshold)


@kernel("SoftplusV2Grad")
def softplus_grad(input_gradients, input_features, *, beta, threshold):
    """Return the gradient of SoftplusV2."""
    return aten.softplus_backward(input_gradients, input_features, beta, threshold)


@kernel("HardShrink")
def hard_shrink(input_x, *, lambd):
    """x, or 0 within -lambd … lambd."""
    return F.hardshrink(input_x, lambd)


@kernel("HardShrinkGrad")
def hard_shrink_grad(gradients, features, *, lambd):
    """Return the gradient of HardShrink."""
    return aten.hardshrink_backward(gradients, features, lambd)


@kernel("SoftShrink")
def soft_shrink(input_x, *, lambd):
    """Move x toward 0 by lambd; return 0 within -lambd … lambd."""
    return F.softshrink(input_x, lambd)


@kernel("SoftShrinkGrad")
def soft_shrink_grad(input_grad, input_x, *, lambd):
    """Return the gradient of SoftShrink."""
    return aten.softshrink_backward(input_grad, input_x, lambd)
