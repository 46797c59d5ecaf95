"""ATen convolutions. One spatial dim runs as two, the first of size 1."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import INT64, cast, like, pack, promote, shape_of, size_of, sizes
from torchair.convert.base.registry import converter
from torchair.ge.graph import Tensor

aten = torch.ops.aten

_FORMATS = {2: "NCHW", 3: "NCDHW"}
_FORWARD = {2: ge.Conv2D, 3: ge.Conv3D}
_TRANSPOSED = {2: ge.Conv2DTranspose, 3: ge.Conv3DTranspose}
_TO_INPUT = {2: ge.Conv2DBackpropInput, 3: ge.Conv3DBackpropInput}
_TO_FILTER = {2: ge.Conv2DBackpropFilter, 3: ge.Conv3DBackpropFilter}


class Window:
    """Hold stride, padding, dilation and output padding of a convolution, with at least two spatial dims."""

    def __init__(self, x, weight, given, groups):
        if any(isinstance(part, Tensor) for part in (*given, groups)):
            raise NotImplementedError("a stride, padding or dilation is symbolic")
        spatial = weight.rank - 2
        if x.rank != weight.rank or spatial not in (1, 2, 3):
            raise NotImplementedError(f"it has {spatial} spatial dims on rank {x.rank}")
        self.is_flat = spatial == 1
        fills = (1, 0, 1, 0)
        self.stride, self.padding, self.dilation, self.output_padding = (
            ([fill] if self.is_flat else []) + (list(part) * spatial if len(part) == 1 else list(part))
            for part, fill in zip(given, fills, strict=True)
        )
        self.spatial = max(spatial, 2)
        self.groups = groups

    @property
    def attrs(self):
        """GE's attributes: pads on both sides of a dim; strides and dilations have batch and channels too."""
        return {
            "strides": [1, 1, *self.stride],
            "pads": [pad for pad in self.padding for _ in range(2)],
            "dilations": [1, 1, *self.dilation],
            "groups": self.groups,
            "data_format": _FORMATS[self.spatial],
        }

    def widen(self, x):
        """Turn one spatial dim into two."""
        return ge.Unsqueeze(x, axes=[2]) if self.is_flat else x

    def narrow(self, x):
        """Undo `widen`."""
        return ge.Squeeze(x, axis=[2]) if self.is_flat else x

    def transposed_size(self, x, weight):
        """Return the size of a transposed convolution: (i - 1) * s - 2p + d * (k - 1) + output
        padding + 1.
        """
        results = [size_of(x, 0), times(size_of(weight, 1), self.groups)]
        for dim, step in enumerate(self.stride):
            spread = plus(
                times(size_of(x, dim + 2), step), times(size_of(weight, dim + 2), self.dilation[dim])
            )
            shift = self.output_padding[dim] + 1 - step - self.dilation[dim] - 2 * self.padding[dim]
            results.append(plus(spread, shift))
        return pack(results)


def times(size, factor):
    """Return size * factor, for an int or a size in the graph."""
    return size * factor if isinstance(size, int) else ge.Mul(size, factor)


def plus(a, b):
    """Return the sum of two sizes, ints or sizes in the graph."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return ge.Add(b, a) if isinstance(a, int) else ge.Add(a, b)


def padded(x, padding):
    """Pad the data first if pads are symbolic: the pads of a convolution are attributes."""
    sides = [ge.Gather(padding, cast(dim, INT64)) for dim in range(sizes(padding)[0])]
    sides = sides * (x.rank - 2) if len(sides) == 1 else sides
    return ge.PadV3(
        x, pack([0] * 4 + [side for side in sides for _ in range(2)]), like(0, x), mode="constant"
    )


@converter(aten.convolution.default)
def convolution(
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *, meta_outputs
):
    """Convolve over one to three spatial dims, also transposed."""
    if isinstance(padding, Tensor) and not transposed:
        input, padding = padded(input, padding), [0] * (weight.rank - 2)
    window = Window(input, weight, (stride, padding, dilation, output_padding), groups)
    input, weight = (window.widen(x) for x in promote(input, weight, to=meta_outputs.dtype))
    bias = None if bias is None else cast(bias, meta_outputs.dtype)
    if not transposed:
        return window.narrow(_FORWARD[window.spatial](input, weight, bias, **window.attrs))
    size = window.transposed_size(input, weight)
    output_padding = [0, 0, *window.output_padding]
    make = _TRANSPOSED[window.spatial]
    return window.narrow(make(size, input, weight, bias, **window.attrs, output_padding=output_padding))


@converter(aten.convolution_backward.default)
def convolution_backward(
    grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
    output_mask, *, used,
):  # fmt: skip
    """Return the gradients of input, weight and bias; when transposed, data and gradient swap roles."""
    window = Window(input, weight, (stride, padding, dilation, output_padding), groups)
    grad, input, weight = (window.widen(x) for x in (grad_output, input, weight))
    wanted = [a and b for a, b in zip(used, output_mask, strict=True)]
    results: list[Tensor | None] = [None, None, None]
    if wanted[0] and transposed:
        results[0] = window.narrow(_FORWARD[window.spatial](grad, weight, None, **window.attrs))
    elif wanted[0]:
        results[0] = window.narrow(_TO_INPUT[window.spatial](shape_of(input), weight, grad, **window.attrs))
    if wanted[1]:
        data, out = (grad, input) if transposed else (input, grad)
        results[1] = _TO_FILTER[window.spatial](data, shape_of(weight), out, **window.attrs)
        results[1] = window.narrow(cast(results[1], weight.dtype))
    if wanted[2]:
        results[2] = ge.ReduceSum(grad_output, [0, *range(2, grad_output.rank)])
    return results
