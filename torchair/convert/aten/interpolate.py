"""ATen resampling: resizing of planes and volumes, and sampling at grid positions.

Resizing is linear and works dim by dim, so each dim has a matrix: a row for each result, a column for each
element. Where GE has no op for a resizing mode (or its gradient, or a symbolic size), lines are multiplied by
that matrix, or by its transpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchair import ge
from torchair.convert.aten.index import counted
from torchair.convert.aten.matmul import along_dim
from torchair.convert.base.operands import FLOAT, INT32, INT64, cast, size_of, sizes, torch_dtype
from torchair.convert.base.registry import converter
from torchair.core import dtypes
from torchair.ge.graph import Tensor
from torchair.ge.host import is_symbol

aten = torch.ops.aten


def check_scales(x, output_size, scales):
    """Check that a given scale equals input size / result size, by which GE scales."""
    for dim, scale in enumerate(scales):
        if scale is None:
            continue
        size = sizes(x)[dim + 2]
        is_exact = (
            not is_symbol(size) and not isinstance(output_size, Tensor) and size * scale == output_size[dim]
        )
        if not is_exact and (isinstance(scale, Tensor) or scale != int(scale)):
            raise NotImplementedError("its scale is not the ratio of the sizes")


def in_float(x):
    """Cast to float32, in which GE resamples; doubles stay."""
    return x if dtypes.to_torch(x.dtype) == torch.float64 else cast(x, FLOAT)


@converter(aten.upsample_nearest2d.default)
def upsample_nearest2d(self, output_size, scales_h=None, scales_w=None):
    """Return for each result the element at floor(index * input size / result size)."""
    check_scales(self, output_size, (scales_h, scales_w))
    return ge.ResizeNearestNeighborV2(self, cast(output_size, INT32))


def ratio(size, wanted, scale, align_corners, dtype):
    """Return the number of elements per result."""
    if align_corners:
        size, wanted = less_one(size), less_one(wanted)
        if isinstance(size, int) and isinstance(wanted, int):
            return cast(size / wanted if wanted > 0 else 0.0, dtype)
        return ge.Div(cast(size, dtype), cast(ge.Maximum(cast(wanted, INT64), cast(1, INT64)), dtype))
    if isinstance(scale, int | float) and scale > 0:
        return cast(1.0 / scale, dtype)
    if isinstance(size, int) and isinstance(wanted, int):
        return cast(size / wanted, dtype)
    return ge.Div(cast(size, dtype), cast(wanted, dtype))


def less_one(size):
    """Return size - 1."""
    return size - 1 if isinstance(size, int) else ge.Sub(size, cast(1, INT64))


@dataclass(frozen=True)
class Dim:
    """Describe one dim to be resized: a column of results, a row of elements."""

    size: Any
    wanted: Any
    scale: Any
    align_corners: bool
    dtype: int

    @property
    def results(self):
        """Return the indices of the results as floats, one row each."""
        return cast(ge.Unsqueeze(counted(self.wanted), axes=[1]), self.dtype)

    @property
    def elements(self):
        """Return the indices of the elements, one column each."""
        return ge.Unsqueeze(counted(self.size), axes=[0])

    @property
    def ratio(self):
        """Return the number of elements per result."""
        return ratio(self.size, self.wanted, self.scale, self.align_corners, self.dtype)

    def number(self, value):
        """Return a constant."""
        return cast(value, self.dtype)

    def last(self):
        """Return the index of the last element."""
        return cast(less_one(self.size), INT64)

    def source(self, clipped):
        """Return the position of a result among the elements: pixels are centered in the middle, or at the
        ends.
        """
        if self.align_corners:
            return ge.Mul(self.results, self.ratio)
        half = self.number(0.5)
        place = ge.Sub(ge.Mul(self.ratio, ge.Add(self.results, half)), half)
        return ge.Maximum(place, self.number(0.0)) if clipped else place

    def at(self, place, weight):
        """Return a matrix with `weight` at the element `place` of every row."""
        return ge.SelectV2(ge.Equal(self.elements, place), weight, self.number(0.0))


def nearest(dim):
    """Select the element at floor(index * ratio)."""
    return _nearest(dim, dim.results)


def nearest_exact(dim):
    """Select the element that contains the center of the result."""
    return _nearest(dim, ge.Add(dim.results, dim.number(0.5)))


def _nearest(dim, results):
    place = cast(ge.Floor(ge.Mul(results, dim.ratio)), INT64)
    return dim.at(ge.Minimum(place, dim.last()), dim.number(1.0))


def linear(dim):
    """Weight the two neighbors by their distance."""
    place = dim.source(clipped=True)
    first = ge.Minimum(cast(ge.Floor(place), INT64), dim.last())
    second = ge.Minimum(ge.Add(first, cast(1, INT64)), dim.last())
    part = ge.Minimum(ge.Sub(place, cast(first, dim.dtype)), dim.number(1.0))
    return ge.Add(dim.at(first, ge.Sub(dim.number(1.0), part)), dim.at(second, part))


# The free parameter of cubic interpolation: torch's default, and that of antialiased resizing.
_CUBIC, _SMOOTH_CUBIC = -0.75, -0.5


def cubic(dim):
    """Weight four neighbors; those beyond the ends are the ends."""
    place = dim.source(clipped=False)
    first = ge.Floor(place)
    part, whole = ge.Sub(place, first), cast(first, INT64)
    result = None
    for step in (-1, 0, 1, 2):
        near = ge.Minimum(ge.Maximum(ge.Add(whole, cast(step, INT64)), cast(0, INT64)), dim.last())
        row = dim.at(near, bump(dim, ge.Abs(ge.Sub(part, dim.number(float(step)))), _CUBIC))
        result = row if result is None else ge.Add(result, row)
    return result


def bump(dim, distance, a):
    """Return the cubic weight of an element at a distance."""
    near = polynomial(dim, distance, (a + 2, -(a + 3), 0.0, 1.0))
    far = polynomial(dim, distance, (a, -5 * a, 8 * a, -4 * a))
    one, two = dim.number(1.0), dim.number(2.0)
    far = ge.SelectV2(ge.Less(distance, two), far, dim.number(0.0))
    return ge.SelectV2(ge.LessEqual(distance, one), near, far)


def polynomial(dim, x, factors):
    """Evaluate a polynomial by Horner's rule."""
    result = dim.number(factors[0])
    for factor in factors[1:]:
        result = ge.Add(ge.Mul(result, x), dim.number(factor))
    return result


def tent(dim, distance):
    """Return the linear weight of an element at a distance."""
    return ge.Maximum(ge.Sub(dim.number(1.0), distance), dim.number(0.0))


def smooth_bump(dim, distance):
    """Return the cubic weight of an element at a distance."""
    return bump(dim, distance, _SMOOTH_CUBIC)


def lanczos(dim, distance):
    """Return sinc(x) * sinc(x / 3)."""
    result = ge.Mul(sinc(dim, distance), sinc(dim, ge.Div(distance, dim.number(3.0))))
    return ge.SelectV2(ge.Less(distance, dim.number(3.0)), result, dim.number(0.0))


def sinc(dim, x):
    """Return sin(pi x) / (pi x)."""
    angle = ge.Mul(x, dim.number(torch.pi))
    is_zero = ge.Equal(angle, dim.number(0.0))
    safe = ge.SelectV2(is_zero, dim.number(1.0), angle)
    return ge.SelectV2(is_zero, dim.number(1.0), ge.Div(ge.Sin(safe), safe))


def smooth(weight, support):
    """Weight all elements that a result covers: when shrinking, the filter is as wide as the result."""

    def matrix(dim):
        widened = ge.Maximum(dim.ratio, dim.number(1.0))
        reach = ge.Mul(dim.number(support), widened)
        half = dim.number(0.5)
        centre = ge.Mul(dim.ratio, ge.Add(dim.results, half))
        first = ge.Maximum(cast(ge.Add(ge.Sub(centre, reach), half), INT64), cast(0, INT64))
        after = ge.Minimum(cast(ge.Add(ge.Add(centre, reach), half), INT64), cast(dim.size, INT64))
        inside = ge.LogicalAnd(ge.GreaterEqual(dim.elements, first), ge.Less(dim.elements, after))
        middles = ge.Add(cast(dim.elements, dim.dtype), half)
        weights = weight(dim, ge.Abs(ge.Div(ge.Sub(middles, centre), widened)))
        weights = ge.SelectV2(inside, weights, dim.number(0.0))
        return ge.Div(weights, ge.ReduceSum(weights, [1], keep_dims=True))

    return matrix


SMOOTH = {
    "bilinear": smooth(tent, 1.0), "bicubic": smooth(smooth_bump, 2.0), "lanczos": smooth(lanczos, 3.0),
}  # fmt: skip


def listed(numbers, count):
    """Return the entries of a list of sizes, ints or numbers of the graph."""
    if not isinstance(numbers, Tensor):
        return list(numbers)
    return [ge.Gather(numbers, cast(place, INT64)) for place in range(count)]


def resized(matrix, x, output_size, align_corners, scales):
    """Resize data by a matrix for each dim, the last dim first."""
    if torch_dtype(x) == torch.uint8:
        raise NotImplementedError("torch resizes bytes in integers")
    result, wanted = in_float(x), listed(output_size, len(scales))
    for place in reversed(range(len(scales))):
        dim = Dim(size_of(x, 2 + place), wanted[place], scales[place], align_corners, result.dtype)
        result = along_dim(matrix(dim), result, 2 + place)
    return cast(result, x.dtype)


def resized_gradient(matrix, grad, input_size, align_corners, scales):
    """Return the gradient of `resized`: multiply by the transposed matrices."""
    result, size = in_float(grad), listed(input_size, 2 + len(scales))
    for place in range(len(scales)):
        dim = Dim(size[2 + place], size_of(grad, 2 + place), scales[place], align_corners, result.dtype)
        result = along_dim(ge.Transpose(matrix(dim), [1, 0]), result, 2 + place)
    return cast(result, grad.dtype)


def _smooth_converters(mode):
    matrix = SMOOTH[mode]

    def forward(self, output_size, align_corners, scales_h=None, scales_w=None):
        return resized(matrix, self, output_size, align_corners, (scales_h, scales_w))

    def backward(grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None):
        return resized_gradient(matrix, grad_output, input_size, align_corners, (scales_h, scales_w))

    converter(f"aten._upsample_{mode}2d_aa.default")(forward)
    converter(f"aten._upsample_{mode}2d_aa_backward.default")(backward)


for _mode in SMOOTH:
    _smooth_converters(_mode)


def known(*numbers):
    """Return whether these are lists of ints, and numbers that are not symbols."""
    return not any(isinstance(number, Tensor) for number in numbers)


def is_ratio(size, wanted, scale):
    """Return whether a scale is missing or equals the ratio of the sizes."""
    return scale is None or (known(scale) and size * scale == wanted)


@converter(aten.upsample_nearest2d_backward.default)
def upsample_nearest2d_backward(grad_output, output_size, input_size, scales_h=None, scales_w=None):
    """Sum the gradients of the results that came from an element."""
    return _nearest_gradient(nearest, grad_output, output_size, input_size, (scales_h, scales_w))


@converter(aten._upsample_nearest_exact2d_backward.default)
def upsample_nearest_exact2d_backward(grad_output, output_size, input_size, scales_h=None, scales_w=None):
    """Sum the gradients of the results that came from an element."""
    return _nearest_gradient(nearest_exact, grad_output, output_size, input_size, (scales_h, scales_w))


def _nearest_gradient(matrix, grad, output_size, input_size, scales):
    if not known(input_size, output_size) or not all(map(is_ratio, input_size[2:], output_size, scales)):
        return resized_gradient(matrix, grad, input_size, False, scales)
    result = ge.ResizeNearestNeighborV2Grad(
        in_float(grad), cast(input_size[2:], INT32), half_pixel_centers=matrix is nearest_exact
    )
    return cast(result, grad.dtype)


@converter(aten._upsample_nearest_exact1d_backward.default)
def upsample_nearest_exact1d_backward(grad_output, output_size, input_size, scales=None):
    """Sum the gradients of the results that came from an element."""
    return resized_gradient(nearest_exact, grad_output, input_size, False, (scales,))


@converter(aten._upsample_nearest_exact3d_backward.default)
def upsample_nearest_exact3d_backward(
    grad_output, output_size, input_size, scales_d=None, scales_h=None, scales_w=None
):
    """Sum the gradients of the results that came from an element."""
    return resized_gradient(nearest_exact, grad_output, input_size, False, (scales_d, scales_h, scales_w))


def _whole_gradient(op, matrix, grad, output_size, input_size, scales, align_corners=None):
    """Use one GE op if sizes and scales are known; they are its attributes."""
    if not known(output_size, input_size, *scales):
        return resized_gradient(matrix, grad, input_size, bool(align_corners), scales)
    attrs = {} if align_corners is None else {"align_corners": align_corners}
    if any(scale is not None for scale in scales):
        if any(scale is None for scale in scales):
            return resized_gradient(matrix, grad, input_size, bool(align_corners), scales)
        attrs["scales"] = [float(scale) for scale in scales]
    sizes_ = {"input_size": list(input_size), "output_size": list(output_size)}
    return cast(op(in_float(grad), **sizes_, **attrs), grad.dtype)


@converter(aten.upsample_nearest1d_backward.default)
def upsample_nearest1d_backward(grad_output, output_size, input_size, scales=None):
    """Sum the gradients of the results that came from an element."""
    return _whole_gradient(ge.UpsampleNearest1dGrad, nearest, grad_output, output_size, input_size, (scales,))


@converter(aten.upsample_nearest3d_backward.default)
def upsample_nearest3d_backward(
    grad_output, output_size, input_size, scales_d=None, scales_h=None, scales_w=None
):
    """Sum the gradients of the results that came from an element."""
    scales = (scales_d, scales_h, scales_w)
    return _whole_gradient(ge.UpsampleNearest3dGrad, nearest, grad_output, output_size, input_size, scales)


@converter(aten.upsample_trilinear3d_backward.default)
def upsample_trilinear3d_backward(
    grad_output, output_size, input_size, align_corners, scales_d=None, scales_h=None, scales_w=None
):
    """Distribute gradients to the neighbors."""
    scales = (scales_d, scales_h, scales_w)
    return _whole_gradient(
        ge.UpsampleTrilinear3dGrad, linear, grad_output, output_size, input_size, scales, align_corners
    )


@converter(aten.upsample_linear1d_backward.default)
def upsample_linear1d_backward(grad_output, output_size, input_size, align_corners, scales=None):
    """Distribute gradients to the neighbors."""
    return resized_gradient(linear, grad_output, input_size, align_corners, (scales,))


@converter(aten.upsample_bicubic2d_backward.default)
def upsample_bicubic2d_backward(
    grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None
):
    """Distribute gradients to the neighbors."""
    return resized_gradient(cubic, grad_output, input_size, align_corners, (scales_h, scales_w))


@converter(aten.upsample_bilinear2d_backward.default)
def upsample_bilinear2d_backward(
    grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None
):
    """Distribute gradients to the neighbors; GE reads the size of the data from a tensor of that size."""
    scales = (scales_h, scales_w)
    if not known(output_size, input_size) or not all(map(is_ratio, input_size[2:], output_size, scales)):
        return resized_gradient(linear, grad_output, input_size, align_corners, scales)
    grad = in_float(grad_output)
    shaped = ge.Fill(list(input_size), cast(0.0, grad.dtype))
    result = ge.ResizeBilinearV2Grad(
        grad, shaped, align_corners=align_corners, half_pixel_centers=not align_corners
    )
    return cast(result, grad_output.dtype)


@converter(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(self, output_size, align_corners, scales_h=None, scales_w=None):
    """Interpolate linearly between the four neighbors."""
    check_scales(self, output_size, (scales_h, scales_w))
    x, size = in_float(self), cast(output_size, INT32)
    result = ge.ResizeBilinearV2(
        x, size, align_corners=align_corners, half_pixel_centers=not align_corners, dtype=x.dtype
    )
    return cast(result, self.dtype)


_INTERPOLATION = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


def sampling(interpolation_mode, padding_mode, align_corners):
    """Return the attributes of the grid samplers."""
    return {
        "interpolation_mode": _INTERPOLATION[interpolation_mode],
        "padding_mode": _PADDING[padding_mode],
        "align_corners": align_corners,
    }


@converter(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    """Sample the data at grid positions."""
    make = ge.GridSampler2D if input.rank == 4 else ge.GridSampler3D
    result = make(
        in_float(input), in_float(grid), **sampling(interpolation_mode, padding_mode, align_corners)
    )
    return cast(result, input.dtype)


@converter(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask, *, used
):
    """Return the gradients of data and grid."""
    make = ge.GridSampler2DGrad if input.rank == 4 else ge.GridSampler3DGrad
    operands = [in_float(x) for x in (grad_output, input, grid)]
    dx, dgrid = make(*operands, **sampling(interpolation_mode, padding_mode, align_corners))
    return cast(dx, input.dtype) if output_mask[0] else None, cast(dgrid, grid.dtype) if output_mask[
        1
    ] else None
