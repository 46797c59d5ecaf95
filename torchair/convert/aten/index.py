"""ATen ops that read by index. Those that write are in `scatter`, those that order in `sort`."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import BOOL, INT64, cast, dim_of, shape_of
from torchair.convert.registry import converter

aten = torch.ops.aten

_MASKS = (BOOL, ge.DataType.DT_UINT8)


@converter(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(self, indices):
    """self[indices]: a tensor for every indexed dim, None for others; a mask stands for its true places."""
    listed = without_masks(indices)
    given = [cast(entry, INT64) for entry in listed if entry is not None]
    return ge.IndexByTensor(self, given, indices_mask=index_mask(listed))


def index_mask(indices):
    """A 1 for every indexed dim."""
    return [int(entry is not None) for entry in indices]


def is_mask(entry):
    """A bool (or, as of old, uint8) tensor in an index."""
    return entry is not None and entry.dtype in _MASKS


def without_masks(indices):
    """The index list with every mask replaced by the coordinates of its true places, a vector each dim."""
    listed = []
    for entry in indices:
        if not is_mask(entry):
            listed.append(entry)
        elif entry.rank == 0:
            raise NotImplementedError("a mask without dims adds a dim")
        else:
            listed.extend(coordinates(entry))
    return listed


def coordinates(mask):
    """For each dim of a mask a vector with the positions of its true places."""
    found = ge.NonZero(mask, transpose=True)
    if mask.rank == 1:
        return [ge.Squeeze(found, axis=[0])]
    return ge.Unpack(found, num=mask.rank, axis=0, outputs=mask.rank)


@converter(aten.index_select.default)
def index_select(self, dim, index):
    """The listed entries of one dim."""
    if not self.rank:
        return ge.Identity(self)
    listed = index if index.rank else ge.Unsqueeze(index, axes=[0])
    return ge.GatherV2(self, listed, [dim_of(dim, self.rank)])


@converter(aten.gather.default)
def gather(self, dim, index, *, sparse_grad=False):
    """For every place of `index`, the element of `self` with that place's index in `dim`."""
    if not self.rank:
        return ge.BroadcastTo(self, shape_of(index)) if index.rank else ge.Identity(self)
    if not index.rank:
        return ge.GatherV2(self, index, [0], negative_index_support=True)
    return ge.GatherElements(self, cast(index, INT64), dim=dim_of(dim, self.rank))


@converter(aten.embedding.default)
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """Rows of a table; the other arguments concern the gradient."""
    return ge.GatherV2(weight, indices, [0])


@converter(aten.embedding_dense_backward.default)
def embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    """The gradient of a table: rows added up by index."""
    if not isinstance(num_weights, int) or not isinstance(padding_idx, int):
        raise NotImplementedError("the number of rows is a symbol")
    return ge.EmbeddingDenseGrad(
        grad_output,
        indices,
        num_weights=num_weights,
        padding_idx=padding_idx,
        scale_grad_by_freq=scale_grad_by_freq,
    )


@converter(aten.masked_select.default)
def masked_select(self, mask):
    """The elements where the mask is true."""
    return ge.MaskedSelect(self, cast(mask, BOOL))


@converter(aten.nonzero.default)
def nonzero(self):
    """Coordinates of what is not zero, one row each."""
    return ge.NonZero(self)


# The numbers ATen gives to the modes of an embedding bag.
_MODES = ("sum", "mean", "max")


@converter(aten._embedding_bag.default)
def embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1,
):  # fmt: skip
    """Rows of a table, reduced by bags that begin at the offsets."""
    return ge.EmbeddingBag(
        weight, indices, cast(offsets, indices.dtype), per_sample_weights, mode=_MODES[mode],
        scale_grad_by_freq=scale_grad_by_freq, sparse=sparse, include_last_offset=include_last_offset,
        padding_idx=padding_idx,
    )  # fmt: skip


def _why_not_forward_only(*args, **_):
    return "the sizes of bags include the last offset" if len(args) > 7 and args[7] else None


converter(aten._embedding_bag_forward_only.default, only=_why_not_forward_only)(embedding_bag)


@converter(aten._unique2.default)
def unique(self, sorted=True, return_inverse=False, return_counts=False):
    """The distinct elements; where each element went, and how often each is there."""
    return ge.UniqueWithCountsAndSorting(
        self, return_inverse=return_inverse, return_counts=return_counts, sorted=sorted
    )


@converter(aten.unique_consecutive.default)
def unique_consecutive(self, return_inverse=False, return_counts=False, dim=None):
    """The first of every run of equals; where each element went, and the lengths of the runs."""
    if dim is not None:
        raise NotImplementedError("runs of slices: their number is not inferred")
    return ge.UniqueConsecutive(self, return_idx=return_inverse, return_counts=return_counts)
