"""Pooling, resizing and grid sampling, with their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.convert.harness import check
from tests.convert.test_matmul import whole_call

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
    "adaptive_max2d": (lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True), PLANE),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_pools(name, dynamic):
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


def max_gradient(grad, x):
    _, indices = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    return aten.max_pool2d_with_indices_backward(grad, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices)


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
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, dynamic):
    fn, grad, shape = GRADIENTS[name]
    check(fn, rand(*grad), rand(*shape), dynamic=dynamic)


def test_adaptive_gradient():
    check(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), rand(2, 3, 4, 3), rand(*PLANE))


RESIZES = {
    "nearest": {"scale_factor": 2, "mode": "nearest"},
    "nearest_size": {"size": (5, 11), "mode": "nearest"},
    "nearest_fraction": {"scale_factor": 1.5, "mode": "nearest"},
    "bilinear": {"scale_factor": 2, "mode": "bilinear"},
    "bilinear_corners": {"size": (5, 11), "mode": "bilinear", "align_corners": True},
    "bicubic": {"scale_factor": 2, "mode": "bicubic"},
    "area": {"size": (4, 3), "mode": "area"},
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", RESIZES)
def test_interpolate(name, dynamic):
    check(lambda x: F.interpolate(x, **RESIZES[name]), rand(*PLANE), dynamic=dynamic)


def test_whole_resizes_convert():
    x = rand(*PLANE)
    nearest = aten.upsample_nearest2d(x, [18, 14], 2.0, 2.0)
    assert "ResizeNearestNeighborV2" in whole_call(
        aten.upsample_nearest2d.default, x, [18, 14], 2.0, 2.0, expected=nearest
    )
    for align_corners in (False, True):
        bilinear = aten.upsample_bilinear2d(x, [5, 11], align_corners)
        arguments = (x, [5, 11], align_corners)
        assert "ResizeBilinearV2" in whole_call(
            aten.upsample_bilinear2d.default, *arguments, expected=bilinear
        )


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_nearest_gradient(dtype):
    def gradient(grad):
        return aten.upsample_nearest2d_backward(grad, [18, 14], [2, 3, 9, 7], 2.0, 2.0)

    check(gradient, rand(2, 3, 18, 14, dtype=dtype), rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample(mode, padding, align_corners):
    def sample(x, grid):
        return F.grid_sample(x, grid, mode, padding, align_corners)

    check(sample, rand(2, 3, 5, 4), rand(2, 4, 6, 2))
    check(sample, rand(2, 3, 5, 4, 3), rand(2, 4, 6, 2, 3))


def test_grid_sample_with_symbols():
    check(
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        rand(2, 3, 5, 4),
        rand(2, 4, 6, 2),
        dynamic=True,
    )


def test_grid_sample_cubic():
    check(
        lambda x, grid: F.grid_sample(x, grid, "bicubic", align_corners=False),
        rand(1, 2, 5, 4),
        rand(1, 4, 6, 2),
    )


def test_grid_sample_in_half_precision():
    # Places between two elements of small integers: exact in 16 bits, so float32 inside makes no difference.
    x = torch.arange(2 * 5 * 5).reshape(1, 2, 5, 5).bfloat16()
    grid = (torch.arange(-4, 5).repeat(2, 1) / 4).t()[None, None].bfloat16()
    check(lambda x, grid: F.grid_sample(x, grid, align_corners=True), x, grid)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("mask", [[True, True], [False, True]])
def test_grid_sample_gradients(dims, mask):
    backward = aten.grid_sampler_2d_backward if dims == 2 else aten.grid_sampler_3d_backward
    extra = [3] * (dims - 2)

    def gradients(grad, x, grid):
        made = backward(grad, x, grid, 0, 0, False, mask)
        return [g for g, wanted in zip(made, mask, strict=True) if wanted]

    check(gradients, rand(2, 3, 4, 6, *extra), rand(2, 3, 5, 4, *extra), rand(2, 4, 6, *extra, dims))
