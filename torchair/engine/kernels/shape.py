"""Ops that rearrange: reshape, transpose, split, join, slice. Views stay views."""

from __future__ import annotations

import math
import sys

import torch

from torchair.core import dtypes
from torchair.core.kernel_params import Int, Ints
from torchair.engine.registry import attribute_kernels, kernel
from torchair.ge.host import Host

# From this number on, the end of a slice means the end of the dim.
END = 2**31 - 1


@kernel("Reshape")
def reshape(x, shape: Ints, *, axis, num_axes):
    """Reshape; one size may be -1."""
    assert (axis, num_axes) == (0, -1), "torchair emits whole reshapes only"
    return torch.reshape(x, shape)


@kernel("Transpose")
def transpose(x, perm: Ints):
    """Permute the dims to the order `perm`."""
    return x.permute(perm)


@kernel("Permute")
def permute(x, *, order):
    """Transpose with the order as an attribute."""
    return x.permute(order)


@kernel("BroadcastTo", "Expand")
def broadcast_to(x, shape: Ints):
    """Expand as in torch; -1 keeps a dim."""
    return x.expand(shape)


@kernel("Pack")
def pack(x, *, axis):
    """Stack along a new dim."""
    return torch.stack(x, axis)


@kernel("Unpack")
def unpack(x, *, axis):
    """Return the entries of a dim."""
    return torch.unbind(x, axis)


@kernel("ConcatV2")
def concat(x, concat_dim: Int):
    """Concatenate along an existing dim; a tensor without dims is one element."""
    return torch.cat([part if part.ndim else part.reshape(1) for part in x], concat_dim)


@kernel("Concat")
def concat_from(concat_dim: Int, x):
    """Concatenate as ConcatV2, with its inputs in the other order."""
    return concat(x, concat_dim)


@kernel("SplitV")
def split_v(x, size_splits: Ints, split_dim: Int):
    """Split into parts of given sizes; one may be -1, the rest."""
    rest = x.shape[split_dim] - sum(size for size in size_splits if not _is_rest(size))
    return torch.split_with_sizes(x, [rest if _is_rest(size) else size for size in size_splits], split_dim)


def _is_rest(size):
    return isinstance(size, int) and size == -1


@kernel("Split")
def split(split_dim: Int, x, *, num_split):
    """Split into parts of equal size."""
    return torch.split_with_sizes(x, [x.shape[split_dim] // num_split] * num_split, split_dim)


@kernel("SplitD")
def split_d(x, *, split_dim, num_split):
    """Split with the dim as an attribute."""
    return split(split_dim, x, num_split=num_split)


@kernel("Squeeze", "SqueezeV2")
def squeeze(x, *, axis):
    """Remove the listed dims; without a list, all dims of size 1."""
    return torch.squeeze(x, tuple(axis)) if axis else torch.squeeze(x)


@kernel("SqueezeV3")
def squeeze_v3(x, axes: Ints):
    """Squeeze with the dims as an input."""
    return squeeze(x, axis=axes)


@kernel("Unsqueeze")
def unsqueeze(x, *, axes):
    """Insert dims of size 1 at these positions of the result."""
    rank = x.ndim + len(axes)
    for dim in sorted(dim % rank for dim in axes):
        x = torch.unsqueeze(x, dim)
    return x


@kernel("UnsqueezeV2")
def unsqueeze_v2(x, *, axis):
    """Unsqueeze, with another attribute name."""
    return unsqueeze(x, axes=axis)


@kernel("UnsqueezeV3")
def unsqueeze_v3(x, axes: Ints):
    """Unsqueeze with the positions as an input."""
    return unsqueeze(x, axes=axes)


@kernel("ExpandDims")
def expand_dims(x, axis: Int):
    """Insert a dim of size 1 at this position of the result."""
    return torch.unsqueeze(x, axis)


@kernel("Flatten")
def flatten(x, *, axis):
    """Flatten to a matrix: the dims before `axis` are its rows, the others its columns."""
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@kernel("FlattenV2")
def flatten_v2(x, *, axis, end_axis):
    """Join the dims from `axis` to `end_axis`."""
    return torch.flatten(x, axis, end_axis)


@kernel("Slice")
def slice_(x, offsets: Ints, size: Ints):
    """Return `size` entries from each offset; a size of -1 means all remaining ones."""
    for dim, (start, count) in enumerate(zip(offsets, size, strict=True)):
        x = torch.narrow(x, dim, start, x.shape[dim] - start if _is_rest(count) else count)
    return x


@kernel("StridedSliceV2")
def strided_slice(x, begin: Ints, end: Ints, axes: Ints, strides: Ints):
    """Slice as in Python on the listed axes."""
    axes = list(range(len(begin))) if axes is None else axes
    strides = [1] * len(begin) if strides is None else strides
    for dim, start, stop, step in zip(axes, begin, end, strides, strict=True):
        x = torch.ops.aten.slice.Tensor(x, dim, start, slice_end(stop), step)
    return x


def slice_end(stop):
    """Return torch's value for the end of a dim; it needs no guard on a symbolic size."""
    return sys.maxsize if isinstance(stop, int) and stop >= END else stop


@kernel("Rank")
def rank(x):
    """Return the number of dims, as a number."""
    return Host(x.ndim, torch.int32)


@kernel("Size")
def size(x, *, dtype):
    """Return the number of elements, as a number."""
    return Host(math.prod(x.shape), dtypes.to_torch(dtype))


@kernel("ShapeN")
def shape_n(x, *, dtype):
    """Return the sizes of every tensor, as numbers."""
    return [Host(tuple(tensor.shape), dtypes.to_torch(dtype)) for tensor in x]


@kernel("Tile")
def tile(x, multiples: Ints):
    """Repeat the tensor along each dim; more multiples than dims add leading dims."""
    return x.repeat(multiples)


@kernel("ReverseV2")
def reverse(x, axis: Ints):
    """Reverse the listed dims."""
    return torch.flip(x, axis)


@kernel("Roll")
def roll(x, *, shifts, dims):
    """Roll the listed dims with wrap-around."""
    return torch.roll(x, shifts, dims)


@kernel("Tril")
def tril(x, *, diagonal):
    """Return the lower triangle of the last two dims."""
    return torch.tril(x, diagonal)


@kernel("Triu")
def triu(x, *, diagonal):
    """Return the upper triangle of the last two dims."""
    return torch.triu(x, diagonal)


attribute_kernels({
    "TransposeD": transpose, "BroadcastToD": broadcast_to, "ExpandD": broadcast_to, "ConcatD": concat,
    "ConcatV2D": concat, "SplitVD": split_v, "SliceD": slice_, "TileD": tile, "ReverseV2D": reverse,
})  # fmt: skip
