"""Resizing and grid sampling, with their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.convert.aten.test_matmul import whole_call
from tests.convert.harness import check
from tests.support.slow import slow

aten = torch.ops.aten
f32, bf16 = torch.float32, torch.bfloat16
PLANE = (2, 3, 9, 7)


def rand(*shape, dtype=f32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


RESIZES = {
    "nearest": {"scale_factor": 2, "mode": "nearest"},
    "nearest_size": {"size": (5, 11), "mode": "nearest"},
    "nearest_fraction": {"scale_factor": 1.5, "mode": "nearest"},
    "bilinear": {"scale_factor": 2, "mode": "bilinear"},
    "bilinear_corners": {"size": (5, 11), "mode": "bilinear", "align_corners": True},
    "bicubic": {"scale_factor": 2, "mode": "bicubic"},
    "area": {"size": (4, 3), "mode": "area"},
    "smooth_bilinear": {"size": (4, 10), "mode": "bilinear", "antialias": True},
    "smooth_bilinear_corners": {"size": (4, 3), "mode": "bilinear", "antialias": True, "align_corners": True},
    "smooth_bilinear_scale": {"scale_factor": 0.6, "mode": "bilinear", "antialias": True},
    "smooth_bicubic": {"size": (4, 10), "mode": "bicubic", "antialias": True},
}


@pytest.mark.parametrize("dynamic", [slow(False), True])
@pytest.mark.parametrize("name", RESIZES)
def test_interpolate_equals_eager(name, dynamic):
    check(lambda x: F.interpolate(x, **RESIZES[name]), rand(*PLANE), dynamic=dynamic)


@pytest.mark.parametrize("antialias", [False, True])
def test_sizes_are_computed_with_all_digits(antialias):
    """0.9 * 20 is 18 in Python and a little less in 32 bits."""
    x = rand(1, 2, 10, 20)
    check(
        lambda x: F.interpolate(x, scale_factor=(1.7, 0.9), mode="bilinear", antialias=antialias),
        x,
        dynamic=True,
    )


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


# The size of the data, that of the result, and the arguments between these and the scales.
LINES, PLANES, VOLUMES = ([2, 3, 9], [11]), ([2, 3, 9, 7], [5, 11]), ([2, 3, 4, 5, 3], [6, 3, 7])
BACKWARD = {
    "upsample_nearest1d": (LINES, ()),
    "upsample_nearest2d": (PLANES, ()),
    "upsample_nearest3d": (VOLUMES, ()),
    "_upsample_nearest_exact1d": (LINES, ()),
    "_upsample_nearest_exact2d": (PLANES, ()),
    "_upsample_nearest_exact3d": (VOLUMES, ()),
    "upsample_linear1d": (LINES, (False,)),
    "upsample_bilinear2d": (PLANES, (False,)),
    "upsample_trilinear3d": (VOLUMES, (False,)),
    "upsample_bicubic2d": (PLANES, (False,)),
    "upsample_linear1d corners": (LINES, (True,)),
    "upsample_bilinear2d corners": (PLANES, (True,)),
    "upsample_trilinear3d corners": (VOLUMES, (True,)),
    "upsample_bicubic2d corners": (PLANES, (True,)),
    "_upsample_bilinear2d_aa": (PLANES, (False,)),
    "_upsample_bicubic2d_aa": (PLANES, (True,)),
}


@pytest.mark.parametrize("scaled", [slow(False), True])
@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_of_resizes(name, scaled):
    """With a scale that is not quite the ratio of the sizes, or none."""
    (size, wanted), more = BACKWARD[name]
    scales = [b / a + 0.01 for a, b in zip(size[2:], wanted, strict=True)] if scaled else [None] * len(wanted)
    backward = getattr(aten, f"{name.split()[0]}_backward")
    check(
        lambda grad: backward(grad, wanted, size, *more, *scales), rand(2, 3, *wanted), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["upsample_nearest2d", "_upsample_bilinear2d_aa"])
def test_gradients_of_resizes_with_symbols(name):
    """Those whose shapes torch can say in symbols."""
    (size, wanted), more = BACKWARD[name]
    backward = getattr(aten, f"{name}_backward")

    def run(grad, x):
        return backward(grad, list(grad.shape[2:]), list(x.shape), *more, *[None] * len(wanted))

    check(run, rand(2, 3, *wanted), rand(*size), dynamic=True, rtol=1e-4, atol=1e-5)


def test_whole_ops_of_gradients():
    """Where sizes are known, the gradient is one op."""
    for name, op in (
        ("upsample_nearest1d", "UpsampleNearest1dGrad"),
        ("upsample_nearest3d", "UpsampleNearest3dGrad"),
        ("upsample_trilinear3d", "UpsampleTrilinear3dGrad"),
        ("upsample_bilinear2d", "ResizeBilinearV2Grad"),
    ):
        (size, wanted), more = BACKWARD[name]
        call = getattr(aten, f"{name}_backward").default
        arguments = (rand(2, 3, *wanted), wanted, size, *more)
        assert op in whole_call(call, *arguments, expected=call(*arguments))


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
