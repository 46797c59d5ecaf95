"""Softmax, normalisation and losses, with their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.convert.aten.test_matmul import whole_call
from tests.convert.harness import check, converted

aten = torch.ops.aten
f32, bf16, f16, f64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
# The lowered graph rounds steps to 16 bits that eager keeps wide; compiled, it does not.
ROUNDED = {"rtol": 2e-2, "atol": 2e-2}


def rand(*shape, dtype=f32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def tolerance(dtype):
    return ROUNDED if dtype in (bf16, f16) else {}


SOFTMAX = {
    "softmax": lambda x: x.softmax(-1),
    "softmax_first": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(1),
    "to_float": lambda x: x.softmax(-1, dtype=f32),
    "log_to_double": lambda x: x.log_softmax(-1, dtype=f64),
    "safe": lambda x: aten._safe_softmax(x, -1),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [f32, bf16, f16])
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax(name, dtype, dynamic):
    check(SOFTMAX[name], rand(3, 4, 5, dtype=dtype).transpose(0, 2), dynamic=dynamic, **tolerance(dtype))


def test_safe_softmax_of_a_hidden_row():
    x = torch.where(torch.ones(4, 4).tril(-1).bool(), rand(4, 4), -torch.inf)
    check(lambda x: aten._safe_softmax(x, -1), x)


@pytest.mark.parametrize("name", ["_softmax_backward_data", "_log_softmax_backward_data"])
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_softmax_gradients(name, dtype):
    def gradient(grad, x):
        y = x.softmax(1) if name == "_softmax_backward_data" else x.log_softmax(1)
        return getattr(aten, name)(grad, y, 1, dtype)

    for dynamic in (False, True):
        check(
            gradient,
            rand(3, 4, dtype=dtype),
            rand(4, 3, dtype=dtype).t(),
            dynamic=dynamic,
            **tolerance(dtype),
        )


def masks(count):
    """All gradients, and each one left out."""
    return [[True] * count, *([index != out for index in range(count)] for out in range(count))]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [f32, bf16, f16, f64])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine, dtype, dynamic):
    parameters = [rand(4, 5, dtype=dtype), rand(5, 4, dtype=dtype).t()] if affine else []

    def norm(x, *parameters):
        return aten.native_layer_norm(x, [4, 5], *(parameters or (None, None)), 1e-5)

    named = (lambda x, w, b: norm(x, w, b)) if affine else (lambda x: norm(x))
    check(named, rand(3, 4, 5, dtype=dtype), *parameters, dynamic=dynamic, **tolerance(dtype))


@pytest.mark.parametrize("mask", masks(3))
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_gradients(affine, mask):
    mask = mask if affine else [mask[0], False, False]

    def gradients(grad, x, w, b):
        w, b = (w, b) if affine else (None, None)
        _, mean, rstd = aten.native_layer_norm(x, [5], w, b, 1e-5)
        return [
            g for g in aten.native_layer_norm_backward(grad, x, [5], mean, rstd, w, b, mask) if g is not None
        ]

    if any(mask):
        for dynamic in (False, True):
            check(gradients, rand(3, 4, 5), rand(4, 3, 5).transpose(0, 1), rand(5), rand(5), dynamic=dynamic)


def test_layer_norm_gradients_in_half_precision():
    def gradients(grad, x, w, b):
        _, mean, rstd = aten.native_layer_norm(x, [5], w, b, 1e-5)
        return aten.native_layer_norm_backward(grad, x, [5], mean, rstd, w, b, [True, True, True])

    check(gradients, *[rand(*shape, dtype=bf16) for shape in ((3, 5), (3, 5), (5,), (5,))], **ROUNDED)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 3, 4)])
def test_group_norm(shape, dynamic):
    check(lambda x, w, b: F.group_norm(x, 3, w, b), rand(*shape), rand(6), rand(6), dynamic=dynamic)
    check(lambda x: F.group_norm(x, 2), rand(*shape), dynamic=dynamic)


@pytest.mark.parametrize("mask", masks(3))
def test_group_norm_gradients(mask):
    def gradients(grad, x, w):
        _, mean, rstd = aten.native_group_norm(x, w, None, 2, 6, 12, 3, 1e-5)
        made = aten.native_group_norm_backward(grad, x, mean, rstd, w, 2, 6, 12, 3, mask)
        return [g for g, wanted in zip(made, mask, strict=True) if wanted]

    check(gradients, rand(2, 6, 3, 4), rand(2, 6, 4, 3).reshape(2, 6, 3, 4), rand(6))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [f32, bf16, f64])
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(eps, dtype, dynamic):
    check(
        lambda x, w: aten._fused_rms_norm(x, [5], w, eps),
        rand(3, 4, 5, dtype=dtype), rand(5, dtype=dtype), dynamic=dynamic, **tolerance(dtype),
    )  # fmt: skip
    check(
        lambda x: aten._fused_rms_norm(x, [4, 5], None, eps), rand(3, 4, 5, dtype=dtype), **tolerance(dtype)
    )


CHANNELS = [(4, 6), (4, 6, 5), (4, 6, 5, 3), (2, 6, 3, 2, 2)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", CHANNELS)
def test_batch_norm_inference(shape, dynamic):
    mean, var = rand(6), rand(6).abs() + 0.5
    check(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        rand(*shape),
        mean,
        var,
        rand(6),
        rand(6),
        dynamic=dynamic,
    )
    check(lambda x, m, v: F.batch_norm(x, m, v), rand(*shape), mean, var, dynamic=dynamic)


def test_batch_norm_of_channels_last_and_mixed_dtypes():
    x, mean, var = rand(2, 6, 5, 3).to(memory_format=torch.channels_last), rand(6), rand(6).abs() + 0.5
    check(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), x, mean, var, rand(6), rand(6))
    check(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        x.bfloat16(),
        mean,
        var,
        rand(6),
        rand(6),
        **ROUNDED,
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", CHANNELS)
def test_batch_norm_training(shape, dynamic):
    mean, var = rand(6), rand(6).abs() + 0.5

    def functional(x, m, v, w, b):
        return aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-5)

    def no_stats(x, w, b):
        return aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)

    check(functional, rand(*shape), mean, var, rand(6), rand(6), dynamic=dynamic)
    check(no_stats, rand(*shape), rand(6), rand(6), dynamic=dynamic)


def test_batch_norm_training_updates_the_running_statistics():
    def step(x, m, v):
        F.batch_norm(x, m, v, training=True, momentum=0.3)
        return m, v

    check(step, rand(4, 6, 5), rand(6), rand(6).abs() + 0.5)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("mask", masks(3))
def test_batch_norm_gradients(mask, train):
    def gradients(grad, x, w, mean, other):
        statistics = (None, None, mean, other) if train else (mean, other, None, None)
        made = aten.native_batch_norm_backward(grad, x, w, *statistics, train, 1e-5, mask)
        return [g for g, wanted in zip(made, mask, strict=True) if wanted]

    x = rand(4, 6, 5, 3)
    statistics = (x.mean((0, 2, 3)), x.var((0, 2, 3)).rsqrt() if train else x.var((0, 2, 3)))
    # Eager's gradient of the input is contiguous; fake tensors tell the strides of `grad`.
    check(gradients, rand(4, 6, 3, 5).transpose(2, 3), x, rand(6), *statistics, fakes_err=mask[0])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [True, False])
def test_nll_loss(weighted, reduction):
    target = torch.tensor([0, 2, -100, 1])

    def loss(x, target, w):
        return F.nll_loss(x.log_softmax(1), target, w if weighted else None, reduction=reduction)

    for dynamic in (False, True):
        check(loss, rand(4, 3), target, rand(3).abs(), dynamic=dynamic)
    check(loss, rand(4, 3, dtype=bf16), target, rand(3, dtype=bf16).abs(), **ROUNDED)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [True, False])
def test_nll_loss_gradients(weighted, reduction):
    def gradient(grad, x, target, w, total):
        return aten.nll_loss_backward(grad, x, target, w if weighted else None, reduction, -100, total)

    grad = rand(4) if reduction == 0 else torch.tensor(0.7)
    check(gradient, grad, rand(4, 3), torch.tensor([0, 2, -100, 1]), rand(3).abs(), torch.tensor(2.5))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_mse_loss(reduction, dynamic):
    check(lambda x, y: F.mse_loss(x, y, reduction=reduction), rand(3, 4), rand(4, 3).t(), dynamic=dynamic)
    number = ["none", "mean", "sum"].index(reduction)
    grad = rand(3, 4) if reduction == "none" else torch.tensor(0.7)
    check(
        lambda g, x, y: aten.mse_loss_backward(g, x, y, number),
        grad,
        rand(3, 4),
        rand(4, 3).t(),
        dynamic=dynamic,
    )


def test_group_norm_of_a_transposed_tensor():
    check(lambda x: F.group_norm(x.transpose(2, 3), 2), rand(2, 6, 3, 4))


def test_unread_statistics_are_not_returned():
    graph, *_ = converted(lambda x: F.layer_norm(x.bfloat16(), [5]), [rand(3, 5)])
    assert [op.type for op in graph.ops].count("Cast") == 1


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_multi_margin_gradients(weighted, p, reduction):
    def gradient(grad, x, target, w):
        w = w if weighted else None
        return aten.multi_margin_loss_backward(grad, x, target, p, 0.75, w, reduction)

    grad = rand(4) if reduction == 0 else torch.tensor(1.5)
    check(gradient, grad, rand(4, 5), torch.tensor([0, 4, 2, 2]), rand(5).abs())


def test_multi_margin_gradient_of_one_sample():
    args = torch.tensor(1.5), rand(5), torch.tensor(3)
    check(lambda grad, x, target: aten.multi_margin_loss_backward(grad, x, target, 1, 1.0), *args)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("samples", [0, 3])
def test_multilabel_margin_gradients(samples, reduction):
    def gradient(grad, x, target):
        _, is_target = aten.multilabel_margin_loss_forward(x, target, reduction)
        return aten.multilabel_margin_loss_backward(grad, x, target, reduction, is_target)

    x, target = rand(3, 4), torch.tensor([[3, 0, -1, 1], [2, 2, 1, -1], [-1, 0, 0, 0]])
    x, target = (x, target) if samples else (x[0], target[0])
    grad = rand(3) if reduction == 0 and samples else torch.tensor(1.5)
    check(gradient, grad, x, target)


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_parts_of_synchronised_batch_norm(dtype):
    """They have kernels on accelerators only: against their formulas."""
    x, grad = rand(4, 3, 5, 2, dtype=dtype), rand(4, 3, 5, 2, dtype=dtype)
    weight, bias, dims = rand(3) + 2, rand(3), [0, 2, 3]
    mean, variance = x.float().mean(dims), x.float().var(dims, unbiased=False)
    rstd = (variance + 1e-3).rsqrt()
    wide = [part[None, :, None, None] for part in (mean, rstd, weight, bias)]
    centred = x.float() - wide[0]
    whole_call(aten.batch_norm_stats.default, x, 1e-3, expected=(mean, rstd))
    expected = (centred * wide[1] * wide[2] + wide[3]).to(dtype)
    whole_call(aten.batch_norm_elemt.default, x, weight, bias, mean, rstd, 1e-3, expected=expected)
    total, moment = grad.float().sum(dims), (grad.float() * centred).sum(dims)
    whole_call(
        aten.batch_norm_backward_reduce.default, grad, x, mean, rstd, weight, True, True, True,
        expected=(total, moment, moment * rstd, total),
    )  # fmt: skip
    # The sums over all processes give the gradient of the whole batch.
    twin = x.float().requires_grad_()
    F.batch_norm(twin, None, None, weight, bias, True, 0.1, 1e-3).backward(grad.float())
    count = torch.tensor([40, 40], dtype=torch.int32)
    whole_call(
        aten.batch_norm_backward_elemt.default, grad, x, mean, rstd, weight, 2 * total, 2 * moment, count,
        expected=twin.grad.to(dtype),
    )  # fmt: skip


def test_functional_batch_norm_in_inference():
    def run(x, w, b, mean, var):
        return aten._native_batch_norm_legit_functional(x, w, b, mean, var, False, 0.1, 1e-5)

    check(run, rand(4, 3, 5), *[rand(3).abs() + 1 for _ in range(4)])
