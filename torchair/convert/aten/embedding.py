"""ATen's embedding tables: rows by index, bags of rows, their gradients."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten.reduce import linalg_vector_norm as vector_norm
from torchair.convert.aten.scatter import write_at
from torchair.convert.base.operands import INT64, cast, like, pack, size_of
from torchair.convert.base.registry import converter

aten = torch.ops.aten


@converter(aten.embedding.default)
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """Return rows of a table; the other arguments concern the gradient."""
    return ge.GatherV2(weight, indices, [0])


@converter(aten.embedding_dense_backward.default)
def embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    """Return the gradient of a table: rows summed by index."""
    if not isinstance(num_weights, int) or not isinstance(padding_idx, int):
        raise NotImplementedError("the number of rows is symbolic")
    return ge.EmbeddingDenseGrad(
        grad_output,
        indices,
        num_weights=num_weights,
        padding_idx=padding_idx,
        scale_grad_by_freq=scale_grad_by_freq,
    )


# ATen's codes for the modes of an embedding bag.
_MODES = ("sum", "mean", "max")


@converter(aten._embedding_bag.default)
def embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1,
):  # fmt: skip
    """Reduce rows of a table by bags that begin at the offsets."""
    return ge.EmbeddingBag(
        weight, indices, cast(offsets, indices.dtype), per_sample_weights, mode=_MODES[mode],
        scale_grad_by_freq=scale_grad_by_freq, sparse=sparse, include_last_offset=include_last_offset,
        padding_idx=padding_idx,
    )  # fmt: skip


@converter(aten._embedding_bag_forward_only.default)
def embedding_bag_forward_only(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1, *, used,
):  # fmt: skip
    """Reduce bags without the results that only the gradient needs."""
    if include_last_offset and any(used[1:]):
        raise NotImplementedError("the sizes of bags include the last offset")
    result = embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset,
        padding_idx,
    )  # fmt: skip
    return [part if wanted else None for part, wanted in zip(result, used, strict=True)]


@converter(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
    sparse, per_sample_weights, padding_idx=-1,
):  # fmt: skip
    """Return the gradient of the table; a sparse one has no GE form."""
    if sparse:
        raise NotImplementedError("the gradient is sparse")
    return embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


@converter(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
    per_sample_weights, padding_idx=-1,
):  # fmt: skip
    """Return the gradient of the table: each row gets that of its bag."""
    if _MODES[mode] == "max":
        return _to_maxima(grad, maximum_indices, bag_size, num_weights)
    rows = ge.GatherV2(grad, offset2bag, [0])
    if _MODES[mode] == "mean":
        share = ge.GatherV2(ge.Maximum(bag_size, like(1, bag_size)), offset2bag, [0])
        rows = ge.Div(rows, ge.Unsqueeze(cast(share, rows.dtype), axes=[1]))
    if per_sample_weights is not None:
        rows = ge.Mul(rows, ge.Unsqueeze(cast(per_sample_weights, rows.dtype), axes=[1]))
    return embedding_dense_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq)


def _to_maxima(grad, maximum_indices, bag_size, num_weights):
    """Add every column's gradient to the row of its maximum.

    Empty bags have no gradient, whatever their index.
    """
    places = cast(maximum_indices, INT64)
    filled = ge.Greater(ge.Unsqueeze(bag_size, axes=[1]), like(0, bag_size))
    known = ge.LogicalAnd(ge.GreaterEqual(places, cast(0, INT64)), filled)
    zeros = ge.Fill(pack([num_weights, size_of(grad, 1)]), like(0, grad))
    parts = ge.SelectV2(known, grad, like(0, grad))
    return ge.ScatterElements(zeros, ge.Maximum(places, cast(0, INT64)), parts, axis=0, reduction="add")


@converter(aten._embedding_bag_per_sample_weights_backward.default)
def per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    """Return the gradient of the weight of every index: its row times the gradient of its bag."""
    rows = ge.Mul(ge.GatherV2(grad, offset2bag, [0]), ge.GatherV2(weight, indices, [0]))
    result = ge.ReduceSum(rows, [1])
    is_padding = ge.Equal(indices, like(padding_idx, indices))
    return ge.SelectV2(is_padding, like(0, result), result)


# ATen adds this to a norm before it divides by it.
_EPSILON = 1e-7


@converter(aten.embedding_renorm.default)
def embedding_renorm(self, indices, max_norm, norm_type):
    """Scale down the listed rows of a table to a norm where theirs is larger."""
    listed = ge.Reshape(indices, [-1])
    rows = ge.GatherV2(self, listed, [0])
    norms = vector_norm(rows, norm_type, [1], True, meta_outputs=None)
    scale = ge.Div(like(max_norm, norms), ge.Add(norms, like(_EPSILON, norms)))
    is_long = ge.Greater(norms, like(max_norm, norms))
    return write_at(self, [listed], ge.SelectV2(is_long, ge.Mul(rows, scale), rows))
