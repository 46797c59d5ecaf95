"""The rules that propagate padding through ops: a rule per family, and a table of the ops in each family."""

from __future__ import annotations

import torch

from torchair.inference._padding.dim_rules import (
    MATRICES,
    along,
    attention,
    batch_norm,
    embedded,
    gathered,
    has_no_norm,
    indexed,
    is_greatest,
    is_least,
    is_one,
    is_true,
    is_zero,
    never,
    normalized,
    of_batches,
    padding,
    product,
    reduction,
    scan,
    scattered,
    softmax,
    vanishes,
)
from torchair.inference._padding.element_rules import (
    cast,
    copied,
    divided,
    expanded,
    joining,
    permuted,
    pointwise,
    positions,
    repeated,
    selected,
    sliced,
    viewed,
    with_value,
)
from torchair.inference._padding.proof import Leak, Op, Result, Rule


def refused(why: str) -> Rule:
    """Return a rule for ops that must not have padded operands."""

    def rule(op: Op) -> Result:
        if op.is_padded:
            raise Leak(f"{op.name} {why}")
        return op.plain(op.result)

    return rule


FAMILIES: tuple[tuple[Rule, str], ...] = (
    (cast, "_to_copy lift_fresh_copy lift_fresh detach alias clone contiguous"),
    (copied, "copy"),
    (
        with_value,
        "full zeros ones empty new_full new_zeros new_ones new_empty full_like zeros_like ones_like",
    ),
    (with_value, "empty_like scalar_tensor empty_strided new_empty_strided"),
    (positions, "arange"),
    (viewed, "view _unsafe_view reshape _reshape_alias unsqueeze squeeze flatten unflatten"),
    (permuted, "permute transpose t numpy_T"),
    (expanded, "expand"),
    (repeated, "repeat"),
    (sliced, "slice narrow"),
    (selected, "select"),
    (divided, "split split_with_sizes unbind chunk unsafe_split"),
    (joining, "cat stack"),
    (reduction(is_zero), "sum nansum count_nonzero any"),
    (reduction(has_no_norm), "linalg_vector_norm norm"),
    (reduction(is_one), "prod"),
    (reduction(is_least), "amax max argmax"),
    (reduction(is_greatest), "amin min argmin"),
    (reduction(is_true), "all"),
    (reduction(vanishes), "logsumexp"),
    (reduction(never), "mean var std var_mean std_mean median nanmedian mode aminmax"),
    (along, "sort argsort topk kthvalue flip roll glu _fft_c2c _fft_r2c _fft_c2r"),
    (padding, "constant_pad_nd"),
    (scan, "cumsum cumprod cummax cummin logcumsumexp"),
    (softmax, "_softmax _log_softmax _safe_softmax softmax log_softmax"),
    (normalized, "native_layer_norm _fused_rms_norm"),
    (of_batches, "convolution native_group_norm avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d"),
    (
        of_batches,
        "_adaptive_avg_pool3d adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d avg_pool3d",
    ),
    (
        of_batches,
        "max_pool3d_with_indices upsample_bicubic2d upsample_nearest1d pixel_shuffle grid_sampler_2d",
    ),
    (of_batches, "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d"),
    (batch_norm, "_native_batch_norm_legit_no_training native_batch_norm _native_batch_norm_legit"),
    (batch_norm, "_native_batch_norm_legit_functional cudnn_batch_norm _batch_norm_with_update batch_norm"),
    (batch_norm, "_batch_norm_no_update"),
    (product, " ".join(MATRICES)),
    (attention, "scaled_dot_product_attention _scaled_dot_product_flash_attention"),
    (attention, "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention"),
    (attention, "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable"),
    (embedded, "embedding"),
    (indexed, "index _unsafe_index"),
    (gathered, "gather index_select"),
    (scattered, "slice_scatter select_scatter"),
    (
        refused("has a size that depends on data"),
        "nonzero masked_select unique_consecutive _unique2 unique_dim",
    ),
    (refused("counts what is padded"), "histc searchsorted bucketize bincount trace"),
)
RULES: dict[str, Rule] = {name: rule for rule, names in FAMILIES for name in names.split()}
"""Rules by op name. Ops that torch tags as pointwise need no entry."""
ABOUT_CONTENTS = (
    *(cast, copied, with_value, positions, viewed, permuted, expanded, repeated, sliced, selected, joining),
)
"""Rules that are also applied to ops without padded operands, because they determine known contents."""


def rule_of(op: Op) -> Rule | None:
    """Return the rule for a call; None if there is none, or none is needed."""
    is_pointwise = torch.Tag.pointwise in op.node.target.tags  # type: ignore[union-attr]
    rule = RULES.get(op.name, pointwise if is_pointwise else None)
    has_size = op.is_padded or any(map(op.sized.has_size, op.numbers()))
    return rule if has_size or rule is pointwise or rule in ABOUT_CONTENTS else None
