"""Where the simulated device does not do what the host does for torch's table of operators, and why. Each row
must be true: an operator that is equal by now has no row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

ASPECTS = ("forward", "in_place", "out", "resized_out", "backward")
LOW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Miss:
    """An operator that is not equal: in which respects, in which dtypes (none: all), and what is said.

    Where rounding alone differs, samples can be equal in spite of it.
    """

    op: str
    aspects: tuple[str, ...]
    says: str
    why: str
    dtypes: tuple[torch.dtype, ...] = ()
    by_rounding: bool = False


_LAYOUT = "the device has strided tensors only: its memory is all that is simulated"
_PRESET = "torch chooses how precisely to sum by the name of the device, and knows cpu and cuda"
_FUSED = (
    "the host has one kernel for it; the device has none, so torch puts it together from others, which round"
)
_BOTH = ("forward", "backward")
MISSES = (
    Miss(
        "sparse.sampled_addmm",
        ("forward", "out", "resized_out", "backward"),
        "only plain strided tensors",
        _LAYOUT,
    ),
    Miss("to_sparse", _BOTH, "only plain strided tensors", _LAYOUT),
    Miss("nn.functional.linear_cross_entropy:chunked", _BOTH, "not close", _PRESET, LOW, True),
    Miss("nn.functional.linear_cross_entropy:chunked_none", _BOTH, "not close", _PRESET, LOW, True),
    Miss("nn.functional.scaled_dot_product_attention", _BOTH, "not close|strides", _FUSED, (), True),
)
# Operators that torch's machinery does not try on this device.
_CUDA = "torch compiles it for CUDA alone"
SKIPPED = {
    "jiterator_unary": _CUDA,
    "jiterator_binary": _CUDA,
    "jiterator_4inputs_with_extra_args": _CUDA,
    "jiterator_binary_return_by_ref": _CUDA,
    "jiterator_2inputs_2outputs": _CUDA,
    "bmm:triton_optimized": "it needs Triton and a GPU",
    "torch._scaled_mm_v2": "its row is for CUDA alone",
    "sparse.mm:reduce": "its row is for the host alone, and of sparse tensors",
}

# Operators whose results depend on a generator, and the device has its own: for one seed the values are not
# the host's. They are compared by shape, dtype and memory, and are the same again for the same seed.
RANDOM = frozenset(
    {
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
        "normal:in_place", "normal:number_mean", "uniform", "rand_like", "randn", "randn_like", "randint",
        "randint_like",
        "nn.functional.rrelu", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
        "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout:with_train",
        "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
        "nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention",
        "svd_lowrank", "pca_lowrank",
    }
)  # fmt: skip
# Results that hold whatever the memory held.
UNDEFINED = frozenset(
    {
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
        "resize_", "resize_as_",
    }
)  # fmt: skip
# Operators that ask for values of tensors, or copy from the host, where a graph under way has no values yet.
REFUSED = frozenset(
    {
        "item", "allclose", "combinations", "corrcoef", "cov", "equal", "linspace:tensor_overload",
        "logspace:tensor_overload", "masked_select", "__getitem__", "unique", "unique_consecutive", "nonzero",
        "argwhere", "nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss", "linalg.cholesky",
        "linalg.ldl_factor", "linalg.lstsq", "linalg.lstsq:grad_oriented", "linalg.lu_factor", "linalg.inv",
        "linalg.solve", "linalg.tensorinv", "linalg.tensorsolve", "masked.cumsum", "masked.cumprod",
    }
)  # fmt: skip
# Operators that cannot be tried in a graph, and why.
UNCAPTURED = {**SKIPPED, "sparse.sampled_addmm": _LAYOUT, "to_sparse": _LAYOUT}


def rows_of(name: str, dtype: torch.dtype) -> Iterable[Miss]:
    """The misses of an operator in a dtype."""
    return [miss for miss in MISSES if miss.op == name and (not miss.dtypes or dtype in miss.dtypes)]
