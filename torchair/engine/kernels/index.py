"""Reading by index: gather, advanced indexing, embedding, masks. Writing is in `scatter`, order in `sort`."""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.core.kernel_params import Int
from torchair.engine.registry import Value, kernel
from torchair.ge.host import Host


@kernel("GatherV2")
def gather_v2(x, indices: Value, axis: Int, *, negative_index_support):
    """Return shape x.shape[:axis] + indices.shape + x.shape[axis+1:].

    A number that is known at compile time makes a view.
    """
    if isinstance(indices, Host):
        if not indices.ndim:
            return torch.select(x, axis, indices.items[0])
        indices = indices.to_tensor(x.device)
    return take(x, indices, axis, negative_index_support)


@kernel("Gather")
def gather(x, indices: Value, *, negative_index_support):
    """Gather along the first dim."""
    return gather_v2(x, indices, 0, negative_index_support=negative_index_support)


def take(x, indices, axis, wraps):
    """Return entries of one dim, by the cheapest torch call."""
    if indices.ndim == 1 and not wraps:
        return torch.index_select(x, axis, indices)
    if x.ndim == 2 and axis == 0 and not wraps and indices.ndim:
        return torch.nn.functional.embedding(indices, x)
    return torch.ops.aten.index.Tensor(x, [None] * axis + [indices])


@kernel("GatherV2D")
def gather_v2_d(x, indices: Value, *, axis):
    """Gather as GatherV2 with the axis as an attribute."""
    return gather_v2(x, indices, axis, negative_index_support=False)


@kernel("GatherNd")
def gather_nd(x, indices, *, negative_index_support):
    """Return the slices of x at the coordinate rows."""
    return torch.ops.aten.index.Tensor(x, list(indices.unbind(-1)))


@kernel("GatherElements")
def gather_elements(x, index, *, dim):
    """Call torch.gather."""
    return torch.gather(x, dim, index)


@kernel("IndexByTensor")
def index_by_tensor(x, indices, *, indices_mask):
    """Index with tensors: the mask has a 1 for every indexed dim, the tensors are listed for the ones."""
    return torch.ops.aten.index.Tensor(x, placed(indices, indices_mask))


def placed(indices, mask):
    """Return the index list of ATen: None where a dim is not indexed."""
    given = iter(indices)
    return [next(given) if indexed else None for indexed in mask]


@kernel("NonZero")
def non_zero(x, *, transpose, dtype):
    """Return the coordinates of nonzero elements: one row each, or one column each when transposed."""
    found = torch.nonzero(x).to(dtypes.to_torch(dtype))
    return found.t() if transpose else found


@kernel("RepeatInterleave")
def repeat_interleave(x, repeats, *, axis):
    """Repeat every entry of a dim `repeats` times."""
    # GE writes "no axis" as 1000: the tensor is flattened.
    return torch.repeat_interleave(x, repeats, None if axis == 1000 else axis)


@kernel("MaskedSelect")
def masked_select(x, mask):
    """Return the elements where the mask is true, flattened."""
    return torch.masked_select(x, mask)


@kernel("EmbeddingDenseGrad")
def embedding_dense_grad(grad, indices, *, num_weights, padding_idx, scale_grad_by_freq):
    """Sum the rows of `grad` by index."""
    return torch.ops.aten.embedding_dense_backward(
        grad, indices, num_weights, padding_idx, scale_grad_by_freq
    )


# ATen's codes for the modes of an embedding bag.
_MODES = {"sum": 0, "mean": 1, "max": 2}


@kernel("EmbeddingBag")
def embedding_bag(
    weight, indices, offsets, per_sample_weights, *,
    mode, scale_grad_by_freq, sparse, include_last_offset, padding_idx,
):  # fmt: skip
    """Reduce rows by bags; return the result, the bag of every index, bag sizes and indices of maxima."""
    # ATen's kernel ignores the strides of these.
    indices, offsets = indices.contiguous(), offsets.contiguous()
    weights = None if per_sample_weights is None else per_sample_weights.contiguous()
    return torch.ops.aten._embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, _MODES[mode], sparse, weights, include_last_offset,
        padding_idx,
    )  # fmt: skip


@kernel("UniqueWithCountsAndSorting")
def unique(x, *, return_inverse, return_counts, sorted):
    """Return the distinct elements, the index of each element among them, and counts; empty if not
    requested.
    """
    return torch.ops.aten._unique2(x, sorted, return_inverse, return_counts)


@kernel("UniqueConsecutive")
def unique_consecutive(x, *, return_idx, return_counts, axis):
    """Return the first element of every run of equal ones, the run of each element, and the run lengths."""
    # GE writes "no axis" as 1000.
    return torch.ops.aten.unique_consecutive(x, return_idx, return_counts, None if axis == 1000 else axis)
