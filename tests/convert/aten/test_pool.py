"""Pooling with its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.convert.harness import check
from tests.support.slow import STATIC_FIRST

aten = torch.ops.aten
f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16


def rand(*shape, dtype=f32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


PLANE, VOLUME, LINE = (2, 3, 9, 7), (2, 3, 6, 5, 7), (2, 3, 9)
POOLS = {
    "max1d": (lambda x: F.max_pool1d(x, 3, 2, 1), LINE),
    "max2d": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), PLANE),
    "max2d_ceil": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), PLANE),
    "max2d_dilated": (lambda x: F.max_pool2d(x, (2, 3), (1, 2), dilation=2, return_indices=True), PLANE),
    "max2d_unbatched": (lambda x: F.max_pool2d(x, 3, 2, return_indices=True), (3, 9, 7)),
    "max3d": (lambda x: F.max_pool3d(x, 2, 2, 1, return_indices=True), VOLUME),
    "max3d_unbatched": (lambda x: F.max_pool3d(x, (1, 2, 3)), (3, 6, 5, 7)),
    "avg1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), LINE),
    "avg2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), PLANE),
    "avg2d_ceil": (lambda x: F.avg_pool2d(x, (2, 3), (2, 1), (1, 0), ceil_mode=True), PLANE),
    "avg2d_exclusive": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), PLANE),
    "avg2d_divisor": (lambda x: F.avg_pool2d(x, 3, divisor_override=5), PLANE),
    "avg2d_unbatched": (lambda x: F.avg_pool2d(x, 3), (3, 9, 7)),
    "avg3d": (lambda x: F.avg_pool3d(x, 2, 2, 1, count_include_pad=False), VOLUME),
    "avg3d_divisor": (lambda x: F.avg_pool3d(x, 2, ceil_mode=True, divisor_override=3), VOLUME),
    "adaptive1d": (lambda x: F.adaptive_avg_pool1d(x, 4), LINE),
    "adaptive2d": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), PLANE),
    "adaptive2d_to_one": (lambda x: F.adaptive_avg_pool2d(x, 1), PLANE),
    "adaptive2d_unbatched": (lambda x: F.adaptive_avg_pool2d(x, 4), (3, 9, 7)),
    "adaptive3d": (lambda x: F.adaptive_avg_pool3d(x, (4, 3, 5)), VOLUME),
    "adaptive3d_even": (lambda x: F.adaptive_avg_pool3d(x, (3, 1, 7)), VOLUME),
    "adaptive3d_unbatched": (lambda x: F.adaptive_avg_pool3d(x, 2), VOLUME[1:]),
    "adaptive_max3d": (lambda x: F.adaptive_max_pool3d(x, (4, 3, 5), return_indices=True), VOLUME),
    "adaptive_max3d_even": (lambda x: F.adaptive_max_pool3d(x, (3, 1, 7), return_indices=True), VOLUME),
    "adaptive_max3d_unbatched": (lambda x: F.adaptive_max_pool3d(x, 2), VOLUME[1:]),
    "adaptive_by_symbols": (
        lambda x: (
            F.adaptive_avg_pool2d(x, (x.shape[0] + 2, 3)),
            *F.adaptive_max_pool2d(x, (x.shape[0] + 2, 3), return_indices=True),
        ),
        PLANE,
    ),
    "adaptive_max2d": (lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True), PLANE),
}


@STATIC_FIRST
@pytest.mark.parametrize("name", POOLS)
def test_pooling_equals_eager(name, dynamic):
    fn, shape = POOLS[name]
    check(fn, rand(*shape), dynamic=dynamic)


@pytest.mark.parametrize("name", ["max2d", "avg2d", "adaptive2d", "max3d"])
def test_pools_of_other_layouts_and_dtypes(name):
    fn, shape = POOLS[name]
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    check(fn, rand(*shape).to(memory_format=layout))
    check(fn, rand(*shape, dtype=bf16), rtol=2e-2, atol=2e-2)


def test_maxima_of_nan_and_infinity():
    x = torch.where(rand(*PLANE) > 1.5, torch.nan, rand(*PLANE))
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    check(lambda x: F.max_pool2d(x, 3, 2, 1), torch.full(PLANE, -torch.inf))


@STATIC_FIRST
def test_means_do_not_read_beyond_their_window(dynamic):
    """An infinite element beside a window makes no NaN of its mean."""
    x, grad = rand(*VOLUME), rand(2, 3, 4, 3, 5)
    x[0, 0, 0, 0, 0] = grad[0, 0, 0, 0, 0] = torch.inf
    check(lambda x: F.adaptive_avg_pool3d(x, (4, 3, 5)), x, dynamic=dynamic)
    check(lambda g, x: aten._adaptive_avg_pool3d_backward(g, x), grad, x, dynamic=dynamic)


def max_gradient(grad, x):
    _, indices = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    return aten.max_pool2d_with_indices_backward(grad, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices)


def max_volume_gradient(grad, x):
    window = ([2] * 3, [2] * 3, [0] * 3, [1] * 3, False)
    _, indices = aten.max_pool3d_with_indices(x, *window)
    return aten.max_pool3d_with_indices_backward(grad, x, *window, indices)


GRADIENTS = {
    "max2d": (max_gradient, (2, 3, 5, 4), PLANE),
    "max2d_unbatched": (max_gradient, (3, 5, 4), PLANE[1:]),
    "avg2d": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], False, False, None),
        (2, 3, 5, 4), PLANE,
    ),
    "avg2d_divisor": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [3, 3], [], [0, 0], False, True, 5), (2, 3, 3, 2), PLANE,
    ),
    "avg3d": (
        lambda g, x: aten.avg_pool3d_backward(g, x, [2] * 3, [2] * 3, [0] * 3, False, True, None),
        (2, 3, 3, 2, 3), VOLUME,
    ),
    "max3d": (max_volume_gradient, (2, 3, 3, 2, 3), VOLUME),
    "adaptive2d": (lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), (2, 3, 4, 3), PLANE),
    "adaptive3d": (lambda g, x: aten._adaptive_avg_pool3d_backward(g, x), (2, 3, 4, 3, 5), VOLUME),
    "adaptive_max2d": (
        lambda g, x: aten.adaptive_max_pool2d_backward(g, x, aten.adaptive_max_pool2d(x, [4, 3])[1]),
        (2, 3, 4, 3), PLANE,
    ),
    "adaptive_max3d": (
        lambda g, x: aten.adaptive_max_pool3d_backward(g, x, aten.adaptive_max_pool3d(x, [3, 2, 3])[1]),
        (3, 3, 2, 3), VOLUME[1:],
    ),
}  # fmt: skip


@STATIC_FIRST
@pytest.mark.parametrize("name", GRADIENTS)
def test_pooling_gradient_equals_eager(name, dynamic):
    fn, grad, shape = GRADIENTS[name]
    check(fn, rand(*grad), rand(*shape), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [PLANE, PLANE[1:], VOLUME])
def test_fractional_pools(shape, dynamic):
    """Windows at random places; the gradient goes to the maxima."""
    dims = 2 if shape in (PLANE, PLANE[1:]) else 3
    pool = getattr(aten, f"fractional_max_pool{dims}d")
    backward = getattr(aten, f"fractional_max_pool{dims}d_backward")
    kernel, output = [2, 3, 2][:dims], [3, 1, 4][:dims]
    samples = torch.rand(*((1, 3) if len(shape) == dims + 1 else (2, 3)), dims)

    # torch cannot say the shape of this gradient in symbols.
    has_gradient = dims == 2 or not dynamic

    def run(x, samples):
        y, indices = pool(x, kernel, output, samples)
        return y, indices, backward(y, x, kernel, output, indices) if has_gradient else y + 1

    check(run, rand(*shape), samples, dynamic=dynamic)
