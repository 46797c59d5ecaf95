"""ATen's activations and their gradients."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import like, shape_of, static_sizes
from torchair.convert.base.registry import converter, map_one_to_one

aten = torch.ops.aten

map_one_to_one({
    aten.relu.default: ge.Relu, aten.silu.default: ge.Swish, aten.mish.default: ge.Mish,
    aten.relu6.default: ge.Relu6, aten.hardsigmoid.default: ge.HardSigmoid,
    aten.hardswish.default: ge.HardSwish, aten.selu.default: ge.Selu,
    aten.hardsigmoid_backward.default: ge.HardSigmoidGrad,
    aten.hardswish_backward.default: ge.HardSwishGrad, aten.mish_backward.default: ge.MishGrad,
})  # fmt: skip
map_one_to_one({aten.sigmoid.default: ge.Sigmoid}, promoted=True)


@converter(aten.silu_backward.default)
def silu_backward(grad_output, self):
    """Return the gradient of silu."""
    return ge.SwishGrad(grad_output, self, ge.Swish(self))


@converter(aten.sigmoid_backward.default)
def sigmoid_backward(grad_output, output):
    """Return the gradient of sigmoid from its result."""
    return ge.SigmoidGrad(output, grad_output)


@converter(aten.tanh_backward.default)
def tanh_backward(grad_output, output):
    """Return the gradient of tanh from its result."""
    return ge.TanhGrad(output, grad_output)


@converter(aten.gelu.default)
def gelu(self, *, approximate="none"):
    """Return x * Phi(x); `approximate` chooses the form."""
    return ge.GeluV2(self, approximate=approximate)


@converter(aten.gelu_backward.default)
def gelu_backward(grad_output, self, *, approximate="none"):
    """Return the gradient of gelu."""
    return ge.GeluGradV2(grad_output, self, approximate=approximate)


@converter(aten.elu.default)
def elu(self, alpha=1, scale=1, input_scale=1):
    """scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))."""
    return ge.Elu(self, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))


@converter(aten.elu_backward.default)
def elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    """Return the gradient of elu, from its input or its result."""
    return ge.EluGradV2(
        grad_output,
        self_or_result,
        alpha=float(alpha),
        scale=float(scale),
        input_scale=float(input_scale),
        is_result=is_result,
    )


@converter(aten.celu.default)
def celu(self, alpha=1.0):
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    return ge.CeluV2(self, alpha=float(alpha))


@converter(aten.leaky_relu.default)
def leaky_relu(self, negative_slope=0.01):
    """Return x, or negative_slope * x below zero."""
    return ge.LeakyRelu(self, negative_slope=float(negative_slope))


@converter(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    """Return the gradient of leaky_relu; input and result have the same sign unless the slope is negative."""
    return ge.LeakyReluGrad(grad_output, self, negative_slope=float(negative_slope))


@converter(aten._prelu_kernel.default)
def prelu_kernel(self, weight):
    """Return x, or weight * x below zero; ATen has already shaped `weight` for broadcasting."""
    shape = static_sizes(weight)
    if (
        shape is None
        or any(size != 1 for dim, size in enumerate(shape) if dim != 1)
        or self.rank < max(len(shape), 1)
    ):
        raise NotImplementedError("PRelu has one weight, or one per channel")
    return ge.PRelu(self, ge.Reshape(weight, [-1]))


@converter(aten.prelu.default)
def prelu(self, weight):
    """Return x, or weight * x below zero; there is one weight, or one per channel."""
    return ge.PRelu(self, ge.Reshape(weight, [-1]))


@converter(aten._prelu_kernel_backward.default)
def prelu_kernel_backward(grad_output, self, weight):
    """Return the gradients of input and weight; ATen returns the latter per element, so each gets a
    weight.
    """
    weight = ge.BroadcastTo(weight, shape_of(self))
    return ge.PReluGrad(grad_output, self, weight)


@converter(aten.glu.default)
def glu(self, dim=-1):
    """Return the first half times the sigmoid of the second."""
    return ge.GLU(self, dim=dim)


@converter(aten.glu_backward.default)
def glu_backward(grad_output, self, dim):
    """Return the gradient of glu."""
    return ge.GLUGrad(grad_output, self, dim=dim)


@converter(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(self, *, meta_outputs):
    """Return log(sigmoid(x)), and a buffer for the gradient that only CPUs fill."""
    _, buffer = meta_outputs
    saved = ge.Exp(ge.Neg(ge.Abs(self))) if buffer.rank == self.rank else ge.Fill([0], like(0.0, self))
    return ge.LogSigmoid(self), saved


@converter(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad_output, self, buffer):
    """Return the gradient of log_sigmoid."""
    return ge.LogSigmoidGrad(grad_output, self)


@converter(aten.threshold.default)
def threshold(self, threshold, value):
    """Return x where it is above the threshold, else `value`."""
    return ge.ThresholdV2(self, like(threshold, self), like(value, self))


@converter(aten.threshold_backward.default)
def threshold_backward(grad_output, self, threshold):
    """Return the gradient where the input was above the threshold."""
    if threshold == 0:
        return ge.ReluGrad(grad_output, self)
    return ge.ThresholdGradV2D(grad_output, self, threshold=float(threshold))


@converter(aten.hardtanh.default)
def hardtanh(self, min_val=-1, max_val=1):
    """Clamp between two bounds."""
    return ge.ClipByValueV2(self, like(min_val, self), like(max_val, self))


@converter(aten.hardtanh_backward.default)
def hardtanh_backward(grad_output, self, min_val, max_val):
    """Return the gradient where the value was strictly between the bounds."""
    return ge.HardtanhGrad(self, grad_output, min_val=float(min_val), max_val=float(max_val))


@converter(aten.softplus.default)
def softplus(self, beta=1, threshold=20):
    """log(1 + exp(beta * x)) / beta; x itself above the threshold."""
    return ge.SoftplusV2(self, beta=float(beta), threshold=float(threshold))


@converter(aten.softplus_backward.default)
def softplus_backward(grad_output, self, beta, threshold):
    """Return the gradient of softplus."""
    return ge.SoftplusV2Grad(grad_output, self, beta=float(beta), threshold=float(threshold))


def _shrink(op):
    """Create a converter for shrinking by one number."""

    def run(*tensors_and_lambd, lambd=0.5):
        *tensors, number = (
            tensors_and_lambd
            if isinstance(tensors_and_lambd[-1], int | float)
            else (*tensors_and_lambd, lambd)
        )
        return op(*tensors, lambd=float(number))

    return run


for _target, _op in {
    aten.hardshrink.default: ge.HardShrink,
    aten.hardshrink_backward.default: ge.HardShrinkGrad,
    aten.softshrink.default: ge.SoftShrink,
    aten.softshrink_backward.default: ge.SoftShrinkGrad,
}.items():
    converter(_target)(_shrink(_op))
