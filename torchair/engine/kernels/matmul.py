"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from torchair.engine.registry import kernel
from torchair.ops.grouped import grouped_mm


@kernel("MatMul")
def mat_mul(x1, x2, bias, *, transpose_x1, transpose_x2):
    """2-D product; an operand is transposed first when its flag says so. `bias` is added to every row."""
    a = x1.t() if transpose_x1 else x1
    b = x2.t() if transpose_x2 else x2
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


@kernel("MatMulV2")
def mat_mul_v2(x1, x2, bias, offset_w, *, transpose_x1, transpose_x2):
    """As MatMul; `offset_w` belongs to quantised weights."""
    assert offset_w is None, "offset_w is for quantised weights"
    return mat_mul(x1, x2, bias, transpose_x1=transpose_x1, transpose_x2=transpose_x2)


@kernel("BatchMatMul")
def batch_mat_mul(x1, x2, *, adj_x1, adj_x2):
    """Product of the last two dims with broadcast batch dims."""
    a = x1.mT if adj_x1 else x1
    b = x2.mT if adj_x2 else x2
    return torch.matmul(a, b)


@kernel("BatchMatMulV2")
def batch_mat_mul_v2(x1, x2, bias, offset_w, *, adj_x1, adj_x2):
    """As BatchMatMul; `bias` is added to every row."""
    assert offset_w is None, "offset_w is for quantised weights"
    if adj_x2 and not adj_x1 and x2.ndim == 2:
        return F.linear(x1, x2, bias)
    product = batch_mat_mul(x1, x2, adj_x1=adj_x1, adj_x2=adj_x2)
    return product if bias is None else product + bias


_ACTIVATIONS: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    1: torch.relu,
    2: lambda x: F.gelu(x, approximate="tanh"),
    3: F.gelu,
    4: lambda x: x * torch.sigmoid(1.702 * x),
    5: F.silu,
}
_GROUPED_DTYPES = {0: torch.float16, 1: torch.bfloat16, 2: torch.int32, 3: torch.float32}


@kernel("GroupedMatmul")
def grouped_matmul(
    x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, group_list, per_token_scale, *,
    split_item, dtype, transpose_weight, transpose_x, group_type, group_list_type, act_type,
):  # fmt: skip
    """y_g = x_g @ w_g + b_g for lists of pairs (group_type -1), or for one x that `group_list` splits.

    Group type 0 splits rows, 2 the inner dim. Rows past the last group are 0.
    """
    quantised = [
        *scale,
        *offset,
        *antiquant_scale,
        *antiquant_offset,
        *([] if per_token_scale is None else [per_token_scale]),
    ]
    assert not quantised, "quantised operands have no definition here"
    assert group_list_type in (0, 1), "pairs of group and count have no definition here"
    left = [part.mT for part in x] if transpose_x else list(x)
    right = [part.mT for part in weight] if transpose_weight else list(weight)
    if group_type == -1:
        made = [torch.mm(a, b) for a, b in zip(left, right, strict=True)]
        made = [y + b for y, b in zip(made, bias, strict=True)] if bias else made
    else:
        assert len(left) == 1, "a group list splits one x"
        assert split_item in (2, 3), "the groups make one result"
        ends = group_list if group_list_type == 0 else group_list.cumsum(0)
        made = [(_split_rows if group_type == 0 else _split_inner)(left[0], right, ends)]
        made = [made[0] + _of_rows(bias, ends, left[0])] if bias else made
    act = _ACTIVATIONS.get(act_type)
    made = [act(y) for y in made] if act is not None else made
    return [y.to(_GROUPED_DTYPES[dtype]) for y in made] if dtype != -1 else made


def _split_rows(x, weight, ends):
    """Rows up to each end times that group's matrix."""
    stacked = weight[0] if len(weight) == 1 and weight[0].ndim == 3 else torch.stack(weight)
    if x.dtype == torch.bfloat16 and _is_aligned(x, stacked):
        return torch.ops.aten._grouped_mm(x, stacked, offs=ends.to(torch.int32))
    return grouped_mm(x, stacked, ends)


def _is_aligned(x, stacked):
    """torch's own op wants 16-byte rows; a symbolic row length is not asked."""
    return all(type(size) is int and size % 8 == 0 for size in (x.shape[1], stacked.shape[2]))


def _split_inner(x, weight, ends):
    """For each group the product over its part of the inner dim: [groups, M, N]."""
    groups = torch.searchsorted(ends, torch.arange(x.shape[1], device=x.device), right=True)
    member = groups == torch.arange(ends.shape[0], device=x.device)[:, None]
    return torch.matmul(x * member[:, None, :].to(x.dtype), weight[0])


def _of_rows(bias, ends, x):
    """The bias of each row's group."""
    stacked = bias[0] if bias[0].ndim == 2 else torch.stack(bias)
    groups = torch.searchsorted(ends, torch.arange(x.shape[0], device=x.device), right=True)
    return stacked[groups.clamp(max=stacked.shape[0] - 1)]
