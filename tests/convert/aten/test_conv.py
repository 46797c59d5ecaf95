"""Convolutions of one to three dims, also transposed, and their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.convert.aten.test_attention import run_ir_op
from tests.convert.harness import check, converted
from tests.support.slow import slow

aten = torch.ops.aten
f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16


def rand(*shape, dtype=f32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


WINDOWS = {
    "plain": {},
    "strided": {"stride": 2, "padding": 1},
    "dilated": {"dilation": 2, "padding": 2},
    "grouped": {"groups": 2, "padding": 1},
}
DATA = {1: (2, 4, 9), 2: (2, 4, 9, 7), 3: (1, 4, 5, 6, 7)}
FORWARD = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
DIMS = pytest.mark.parametrize(
    ("dims", "dynamic"), [(1, False), (2, False), (3, False), slow(1, True), (2, True), slow(3, True)]
)


@pytest.mark.parametrize("window", WINDOWS)
@DIMS
def test_conv_equals_eager(dims, window, dynamic):
    window = WINDOWS[window]
    weight = rand(6, 4 // window.get("groups", 1), *[3] * dims)
    check(
        lambda x, w, b: FORWARD[dims](x, w, b, **window), rand(*DATA[dims]), weight, rand(6), dynamic=dynamic
    )


@pytest.mark.parametrize("window", [*WINDOWS, "wider"])
@DIMS
def test_transposed_conv_equals_eager(dims, window, dynamic):
    window = WINDOWS.get(window, {"stride": 3, "output_padding": 1})
    weight = rand(4, 3, *[3] * dims)
    bias = rand(3 * window.get("groups", 1))
    check(
        lambda x, w, b: TRANSPOSED[dims](x, w, b, **window), rand(*DATA[dims]), weight, bias, dynamic=dynamic
    )


def test_uneven_windows_without_bias():
    check(
        lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(0, 2), dilation=(1, 2)),
        rand(2, 4, 9, 7),
        rand(6, 4, 3, 2),
    )
    check(lambda x, w: F.conv2d(x, w, padding="same"), rand(2, 4, 9, 7), rand(6, 4, 3, 5))


def test_no_batch_dim():
    check(lambda x, w: F.conv2d(x, w), rand(4, 9, 7), rand(6, 4, 3, 3))


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_conv_in_half_precision_equals_eager(dtype):
    operands = [rand(2, 4, 9, 7, dtype=dtype), rand(6, 4, 3, 3, dtype=dtype), rand(6, dtype=dtype)]
    check(lambda x, w, b: F.conv2d(x, w, b, padding=1), *operands)


def test_channels_last_stays_channels_last():
    x, w = (rand(*shape).to(memory_format=torch.channels_last) for shape in ((2, 4, 9, 7), (6, 4, 3, 3)))
    check(lambda x, w: F.conv2d(x, w, padding=1), x, w)


def test_batch_of_none():
    check(lambda x, w: F.conv2d(x, w), rand(0, 4, 9, 7), rand(6, 4, 3, 3))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_conv_gradient_equals_eager(dims, transposed, dynamic):
    x, w = rand(*DATA[dims]), rand(4, 4, *[3] * dims)
    fn = (TRANSPOSED if transposed else FORWARD)[dims]
    grad = torch.randn_like(fn(x, w, stride=2, padding=1))

    def gradients(grad, x, w):
        ones = [1] * dims
        return aten.convolution_backward(
            grad, x, w, [4], [2] * dims, ones, ones, transposed, [0] * dims, 1, [True, True, True]
        )

    check(gradients, grad, x, w, dynamic=dynamic, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, False, True]])
def test_single_gradients_of_groups(mask):
    def gradients(grad, x, w):
        made = aten.convolution_backward(grad, x, w, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, mask)
        return [g for g, wanted in zip(made, mask, strict=True) if wanted]

    operands = rand(2, 6, 9, 7), rand(2, 4, 9, 7), rand(6, 2, 3, 3)
    check(gradients, *operands, rtol=1e-5, atol=1e-4)


def test_gradients_in_half_precision():
    def gradients(grad, x, w):
        return aten.convolution_backward(
            grad, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )[:2]

    check(
        gradients,
        *[rand(*s, dtype=bf16) for s in ((2, 6, 5, 5), (2, 4, 5, 5), (6, 4, 3, 3))],
        rtol=2e-2,
        atol=0.1,
    )


def test_conv_attributes_are_emitted():
    graph, *_ = converted(
        lambda x, w: F.conv2d(x, w, stride=(2, 3), padding=(1, 2), dilation=(1, 2)),
        [rand(2, 4, 9, 9), rand(6, 4, 3, 3)],
    )
    (op,) = [op for op in graph.ops if op.type == "Conv2D"]
    attrs = op.attributes()
    assert attrs["strides"] == [1, 1, 2, 3]
    assert attrs["pads"] == [1, 1, 2, 2]
    assert attrs["dilations"] == [1, 1, 1, 2]
    assert attrs["data_format"] == "NCHW"


def test_pads_that_differ_on_the_two_sides():
    x, w, b = rand(2, 4, 9, 7), rand(6, 4, 3, 3), rand(6)
    attrs = {"strides": [1, 1, 2, 1], "pads": [0, 1, 2, 0], "data_format": "NCHW"}
    (got,) = run_ir_op("Conv2D", [x, w, b], attrs)
    torch.testing.assert_close(got, F.conv2d(F.pad(x, [2, 0, 0, 1]), w, b, stride=(2, 1)))
    w = rand(4, 6, 3, 3)
    whole = F.conv_transpose2d(x, w, b, stride=(2, 1))
    shape = (2, 6, whole.shape[2] - 1, whole.shape[3] - 2)
    (got,) = run_ir_op("Conv2DTranspose", [shape, x, w, b], attrs)
    torch.testing.assert_close(got, whole[:, :, :-1, 2:])


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_padding_by_symbols(dims):
    conv = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    check(
        lambda x, w: conv(x, w, padding=[size - 1 for size in w.shape[2:]], stride=2),
        rand(2, 4, *[6] * dims),
        rand(6, 4, *[3, 2, 4][:dims]),
        dynamic=True,
        rtol=1e-4,
        atol=1e-5,
    )
