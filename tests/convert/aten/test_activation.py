"""Activations and their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.convert.aten.test_pointwise import bf16, f16, f32, make
from tests.convert.harness import check, converted

aten = torch.ops.aten

FORWARD = {
    "relu": F.relu, "relu6": F.relu6, "silu": F.silu, "mish": F.mish, "selu": F.selu,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "sigmoid": torch.sigmoid, "gelu": F.gelu,
    "softsign": F.softsign, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 0.7), "celu": lambda x: F.celu(x, 1.3),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "glu": lambda x: F.glu(x, 1),
    "logsigmoid": F.logsigmoid, "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 1.5), "softplus": lambda x: F.softplus(x, 2.0, 3.0),
    "hardshrink": lambda x: F.hardshrink(x, 0.3), "softshrink": lambda x: F.softshrink(x, 0.3),
    "tanhshrink": F.tanhshrink,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [f32, bf16, f16])
@pytest.mark.parametrize("name", FORWARD)
def test_activation_equals_eager(name, dtype):
    check(lambda x: FORWARD[name](x), make(dtype, 3, 6))


@pytest.mark.parametrize("name", FORWARD)
def test_forward_with_symbolic_sizes(name):
    # Eager's logsigmoid is contiguous, whatever its argument is.
    check(lambda x: FORWARD[name](x), make(f32, 4, 6).t(), dynamic=True, fakes_err=name == "logsigmoid")


BACKWARD = {
    "relu": lambda g, x: aten.threshold_backward(g, x, 0),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.5), "silu": aten.silu_backward,
    "mish": aten.mish_backward, "gelu": aten.gelu_backward,
    "gelu_tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "sigmoid": aten.sigmoid_backward, "tanh": aten.tanh_backward,
    "hardsigmoid": aten.hardsigmoid_backward, "hardswish": aten.hardswish_backward,
    "elu": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, False, x),
    "elu_result": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, True, x),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False),
    "logsigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -0.5, 1.5),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 2.0, 3.0),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.3),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.3),
    "glu": lambda g, x: aten.glu_backward(g[:, :3], x, 1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("name", BACKWARD)
def test_activation_gradient_equals_eager(name, dtype):
    # The lowered graph rounds every step to 16 bits; compiled, it does not.
    tolerance = {} if dtype is f32 else {"rtol": 0.1, "atol": 0.02}
    check(BACKWARD[name], make(dtype, 4, 6), make(dtype, 6, 4).reshape(4, 6), **tolerance)


@pytest.mark.parametrize("channels", [1, 4])
def test_prelu_equals_eager(channels):
    check(F.prelu, make(f32, 2, 4, 3), make(f32, channels))
    check(F.prelu, make(f32, 5), make(f32, 1))


def test_prelu_gradient_equals_eager():
    check(aten._prelu_kernel_backward, make(f32, 2, 4), make(f32, 2, 4), make(f32, 1, 4))


def test_the_form_of_gelu_reaches_the_graph():
    graph, _, _, _ = converted(lambda x: F.gelu(x, approximate="tanh"), [make(f32, 3)])
    gelu = next(op for op in graph.ops if op.type == "GeluV2")
    assert gelu.attrs["approximate"].value == "tanh"
