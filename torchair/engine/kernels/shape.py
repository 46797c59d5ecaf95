"""Ops that rearrange: reshape, transpose, split, join, slice. Views stay views."""

from __future__ import annotations

import sys

import torch

from torchair.core.slots import Int, Ints
from torchair.engine.registry import kernel

# From this number on the end of a slice means the end of the dim.
END = 2**31 - 1


@kernel("Reshape")
def reshape(x, shape: Ints, *, axis, num_axes):
    """torch's reshape; one size may be -1."""
    assert (axis, num_axes) == (0, -1), "only whole reshapes are emitted"
    return torch.reshape(x, shape)


@kernel("Transpose")
def transpose(x, perm: Ints):
    """The dims in the order `perm`."""
    return x.permute(perm)


@kernel("BroadcastTo")
def broadcast_to(x, shape: Ints):
    """torch's expand; -1 keeps a dim."""
    return x.expand(shape)


@kernel("Pack")
def pack(x, *, axis):
    """Stack along a new dim."""
    return torch.stack(x, axis)


@kernel("Unpack")
def unpack(x, *, axis):
    """The entries of a dim."""
    return torch.unbind(x, axis)


@kernel("ConcatV2")
def concat(x, concat_dim: Int):
    """Concatenate along an existing dim."""
    return torch.cat(x, concat_dim)


@kernel("SplitV")
def split_v(x, size_splits: Ints, split_dim: Int):
    """Parts of given sizes; one may be -1, the rest."""
    rest = [i for i, size in enumerate(size_splits) if isinstance(size, int) and size == -1]
    if rest:
        known = sum(size for i, size in enumerate(size_splits) if i != rest[0])
        size_splits[rest[0]] = x.shape[split_dim] - known
    return torch.split_with_sizes(x, size_splits, split_dim)


@kernel("Squeeze")
def squeeze(x, *, axis):
    """Without the listed dims; without a list, all of size 1 go."""
    return torch.squeeze(x, tuple(axis)) if axis else torch.squeeze(x)


@kernel("Unsqueeze")
def unsqueeze(x, *, axes):
    """New dims of size 1 at these places of the result."""
    for dim in sorted(axes):
        x = torch.unsqueeze(x, dim)
    return x


@kernel("StridedSliceV2")
def strided_slice(x, begin: Ints, end: Ints, axes: Ints, strides: Ints):
    """Python slicing on the listed axes."""
    axes = list(range(len(begin))) if axes is None else axes
    strides = [1] * len(begin) if strides is None else strides
    for dim, start, stop, step in zip(axes, begin, end, strides, strict=True):
        x = torch.ops.aten.slice.Tensor(x, dim, start, slice_end(stop), step)
    return x


def slice_end(stop):
    """torch's word for the end of a dim; it needs no guard on a symbolic size."""
    return sys.maxsize if isinstance(stop, int) and stop >= END else stop


@kernel("Tile")
def tile(x, multiples: Ints):
    """The tensor several times along each dim; more multiples than dims add dims in front."""
    return x.repeat(multiples)


@kernel("ReverseV2")
def reverse(x, axis: Ints):
    """The listed dims back to front."""
    return torch.flip(x, axis)


@kernel("Roll")
def roll(x, *, shifts, dims):
    """Shifted around the end of the listed dims."""
    return torch.roll(x, shifts, dims)


@kernel("Tril")
def tril(x, *, diagonal):
    """The lower triangle of the last two dims."""
    return torch.tril(x, diagonal)


@kernel("Triu")
def triu(x, *, diagonal):
    """The upper triangle of the last two dims."""
    return torch.triu(x, diagonal)
