"""Resampling of data in torch's order: [batch, channels, spatial dims]."""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.core.kernel_params import Ints
from torchair.engine.registry import kernel

aten = torch.ops.aten


@kernel("ResizeNearestNeighborV2")
def resize_nearest(x, size: Ints, *, align_corners, half_pixel_centers):
    """Return the element at floor(index * input size / result size), or with half-pixel centers."""
    assert not align_corners, "torchair emits no aligned corners"
    resize = aten._upsample_nearest_exact2d if half_pixel_centers else aten.upsample_nearest2d
    return resize(x, size, None, None)


@kernel("ResizeNearestNeighborV2Grad")
def resize_nearest_grad(grads, size: Ints, *, align_corners, half_pixel_centers):
    """Sum the gradients of the results that came from an element; `size` is that of the data."""
    assert not align_corners, "torchair emits no aligned corners"
    whole = [grads.shape[0], grads.shape[1], *size]
    exact = aten._upsample_nearest_exact2d_backward
    back = exact if half_pixel_centers else aten.upsample_nearest2d_backward
    return back(grads, list(grads.shape[2:]), whole, None, None)


@kernel("UpsampleNearest1dGrad")
def upsample_nearest_1d_grad(grad_output, *, input_size, output_size, scales):
    """Sum the gradients of the results that came from an element."""
    return aten.upsample_nearest1d_backward(grad_output, output_size, input_size, *_each(scales, 1))


@kernel("UpsampleNearest3dGrad")
def upsample_nearest_3d_grad(grad_output, *, input_size, output_size, scales):
    """Sum the gradients of the results that came from an element."""
    return aten.upsample_nearest3d_backward(grad_output, output_size, input_size, *_each(scales, 3))


@kernel("UpsampleTrilinear3dGrad")
def upsample_trilinear_3d_grad(grad_output, *, input_size, output_size, scales, align_corners):
    """Distribute gradients to the eight neighbors."""
    return aten.upsample_trilinear3d_backward(
        grad_output, output_size, input_size, align_corners, *_each(scales, 3)
    )


def _each(scales, count):
    """Return a scale for each dim; an empty list means that the sizes define it."""
    return scales or [None] * count


@kernel("ResizeBilinearV2Grad")
def resize_bilinear_grad(grads, original_image, *, align_corners, half_pixel_centers):
    """Distribute gradients to the four neighbors; only the size of the image is read."""
    assert half_pixel_centers != align_corners, "torchair emits only torch's two pixel alignments"
    size = list(original_image.shape)
    return aten.upsample_bilinear2d_backward(grads, list(grads.shape[2:]), size, align_corners, None, None)


@kernel("ResizeBilinearV2")
def resize_bilinear(x, size: Ints, *, align_corners, half_pixel_centers, dtype):
    """Interpolate linearly between the four neighbors."""
    assert half_pixel_centers != align_corners, "torchair emits only torch's two pixel alignments"
    return aten.upsample_bilinear2d(x, size, align_corners, None, None).to(dtypes.to_torch(dtype))


_INTERPOLATION = {"bilinear": 0, "nearest": 1, "bicubic": 2}
_PADDING = {"zeros": 0, "border": 1, "reflection": 2}


@kernel("GridSampler2D")
def grid_sampler_2d(x, grid, *, interpolation_mode, padding_mode, align_corners):
    """Sample the plane at the grid positions."""
    return aten.grid_sampler_2d(
        x, grid, _INTERPOLATION[interpolation_mode], _PADDING[padding_mode], align_corners
    )


@kernel("GridSampler3D")
def grid_sampler_3d(x, grid, *, interpolation_mode, padding_mode, data_format, align_corners):
    """Sample the volume at the grid positions."""
    assert data_format == "NCDHW", "data are in torch's order"
    return aten.grid_sampler_3d(
        x, grid, _INTERPOLATION[interpolation_mode], _PADDING[padding_mode], align_corners
    )


@kernel("GridSampler2DGrad")
def grid_sampler_2d_grad(grad, x, grid, *, interpolation_mode, padding_mode, align_corners):
    """Return the gradients of the plane and of the grid."""
    modes = (_INTERPOLATION[interpolation_mode], _PADDING[padding_mode], align_corners)
    return aten.grid_sampler_2d_backward(grad, x, grid, *modes, [True, True])


@kernel("GridSampler3DGrad")
def grid_sampler_3d_grad(grad, x, grid, *, interpolation_mode, padding_mode, align_corners):
    """Return the gradients of the volume and of the grid."""
    modes = (_INTERPOLATION[interpolation_mode], _PADDING[padding_mode], align_corners)
    return aten.grid_sampler_3d_backward(grad, x, grid, *modes, [True, True])
