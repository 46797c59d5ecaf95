"""ATen's tables: rows by index, bags of rows, their gradients."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import cast
from torchair.convert.registry import converter

aten = torch.ops.aten


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
