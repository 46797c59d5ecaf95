"""Order: sort, top k, search. Indices are INT32, as GE gives them."""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.core.kernel_params import Int
from torchair.engine.registry import kernel


@kernel("Sort")
def sort(x, *, axis, descending, stable):
    """Return sorted values and their indices."""
    values, indices = torch.sort(x, dim=axis, descending=descending, stable=stable)
    return values, indices.to(torch.int32)


@kernel("TopK", "TopKV2")
def top_k(x, k: Int, *, sorted, dim, largest):
    """Return the k largest or smallest elements of a dim, and their indices."""
    values, indices = torch.topk(x, k, dim, largest, sorted)
    return values, indices.to(torch.int32)


@kernel("SearchSorted")
def search_sorted(sorted_sequence, values, sorter, *, dtype, right):
    """Return where a value would be inserted in a sorted sequence; `right` means after equal values."""
    int32 = dtypes.to_torch(dtype) == torch.int32
    values = values.contiguous()
    return torch.searchsorted(sorted_sequence, values, out_int32=int32, right=right, sorter=sorter)
