"""Ops that rearrange: reshape, transpose, concatenate, split, slice, pad."""

from __future__ import annotations

import torch

from torchair.engine.registry import Int, Ints, kernel


@kernel("Reshape")
def reshape(x, shape: Ints, *, axis, num_axes):
    """torch's reshape; one size may be -1."""
    assert axis == 0 and num_axes == -1, "only whole reshapes are emitted"
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


@kernel("ConcatV2")
def concat(x, concat_dim: Int):
    """Concatenate along an existing dim."""
    return torch.cat(x, concat_dim)
