"""Rows to their experts and back where one process holds all experts.

Over several ranks these ops exchange rows between processes; that has no definition here, and they say so.
Rows are ordered by (expert, token); what lies behind the last row that is used is 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.core.errors import UnsupportedOp
from torchair.ops.formats import INT8, dynamic, ir_type, static, wide
from torchair.ops.npu.moe import expert_counts, placed
from torchair.ops.npu.norm import normalised
from torchair.ops.npu.row import Row, made

# Words of the note that goes with a row: the rank, token and slot it comes from, then zeros.
_WORDS = 128


def check_alone(ranks, tp_ranks, shared_ranks, elastic_info=None):
    """All experts are here."""
    if ranks != 1 or tp_ranks > 1 or shared_ranks > 0 or elastic_info is not None:
        raise UnsupportedOp(
            "rows of experts that are exchanged between processes",
            got=f"ep_world_size {ranks}   tp_world_size {tp_ranks}   shared_expert_rank_num {shared_ranks}",
            near="ep_world_size 1, where one process holds all experts",
        )


def is_sent(expert_ids, active_mask, experts):
    """Which entries (token, slot) go to an expert: [n, k]; special experts have numbers past the others."""
    sent = (expert_ids >= 0) & (expert_ids < experts)
    if active_mask is None:
        return sent
    return sent & (active_mask if active_mask.ndim == 2 else active_mask.unsqueeze(1)).bool()


def dispatched(
    x, expert_ids, scales, active_mask, expert_scales, *, experts, quant_mode, global_bs, counts_type
):
    """(rows, scales, places of entries inside their expert, rows per expert, ends, weights, entries)."""
    if quant_mode not in (0, 1, 2):
        raise UnsupportedOp(f"dispatching with quant_mode {quant_mode}", near="0, 1 and 2")
    slots = expert_ids.shape[1]
    sent = is_sent(expert_ids, active_mask, experts).flatten()
    flat = torch.where(sent, expert_ids.flatten().to(torch.int64), experts)
    _, order = flat.sort(stable=True)
    counts = expert_counts(flat, 0, experts)
    inside = torch.where(sent, placed(order) - F.pad(counts.cumsum(0), (1, 0))[flat], 0)
    size = (global_bs or x.shape[0]) * min(experts, slots)
    entries = F.pad(torch.where(flat[order] < experts, order, -1), (0, size - order.shape[0]), value=-1)
    known, used = entries.clamp(min=0), entries >= 0
    rows = torch.where(used.unsqueeze(1), x[known // slots], 0)
    own = (
        None if scales is None else scales[flat[known].clamp(max=experts - 1)] if scales.ndim == 2 else scales
    )
    row_scales = torch.zeros(size, device=x.device)
    if quant_mode == 1:
        rows = static(rows, own, None, INT8)
    elif quant_mode == 2:
        rows, row_scales = dynamic(wide(rows) if own is None else wide(rows) * wide(own), INT8)
    weights = torch.zeros(size, device=x.device)
    if expert_scales is not None:
        weights = torch.where(used, wide(expert_scales).flatten()[known], 0.0)
    ends = counts.cumsum(0)
    return rows, row_scales, inside, ends if counts_type == 0 else counts, ends, weights, entries


def moe_distribute_dispatch(
    x, expert_ids, scales, x_active_mask, expert_scales, *, group_ep, ep_world_size, ep_rank_id,
    moe_expert_num, group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0, shared_expert_num=1,
    shared_expert_rank_num=0, quant_mode=0, global_bs=0, expert_token_nums_type=1,
):  # fmt: skip
    """(rows, their scales, place of each entry inside its expert, rows per expert, ends, zeros, weights)."""
    check_alone(ep_world_size, tp_world_size, shared_expert_rank_num)
    rows, row_scales, inside, counts, ends, weights, _ = dispatched(
        x, expert_ids, scales, x_active_mask, expert_scales, experts=moe_expert_num, quant_mode=quant_mode,
        global_bs=global_bs, counts_type=expert_token_nums_type,
    )  # fmt: skip
    nothing = torch.zeros(1, dtype=torch.int32, device=x.device)
    return rows, row_scales, inside.to(torch.int32), counts, ends.to(torch.int32), nothing, weights


def moe_distribute_dispatch_v2(
    x, expert_ids, scales, x_active_mask, expert_scales, elastic_info, performance_info, *, group_ep,
    ep_world_size, ep_rank_id, moe_expert_num, group_tp="", tp_world_size=0, tp_rank_id=0,
    expert_shard_type=0, shared_expert_num=1, shared_expert_rank_num=0, quant_mode=0, global_bs=0,
    expert_token_nums_type=1, comm_alg="", zero_expert_num=0, copy_expert_num=0, const_expert_num=0,
    y_dtype=0,
):  # fmt: skip
    """The same with a note for each row of where it comes from, instead of places."""
    check_alone(ep_world_size, tp_world_size, shared_expert_rank_num, elastic_info)
    rows, row_scales, _, counts, ends, weights, entries = dispatched(
        x, expert_ids, scales, x_active_mask, expert_scales, experts=moe_expert_num, quant_mode=quant_mode,
        global_bs=global_bs, counts_type=expert_token_nums_type,
    )  # fmt: skip
    known, slots = entries.clamp(min=0), expert_ids.shape[1]
    notes = torch.stack((torch.zeros_like(known), known // slots, known % slots), 1)
    notes = F.pad(notes, (0, _WORDS - 3)).flatten().to(torch.int32)
    nothing = torch.zeros(1, dtype=torch.int32, device=x.device)
    return rows, row_scales, notes, counts, ends.to(torch.int32), nothing, weights


def by_places(expand_x, expert_ids, places, ends, active_mask, experts):
    """The row of each entry [n, k, H] from its place inside its expert; 0 for entries that were not sent."""
    sent = is_sent(expert_ids, active_mask, experts)
    chosen = torch.where(sent, expert_ids.to(torch.int64), 0)
    starts = F.pad(ends.to(torch.int64), (1, 0))[chosen]
    row = torch.where(sent, starts + places.reshape(expert_ids.shape), 0)
    return torch.where(sent.unsqueeze(-1), wide(expand_x)[row], 0.0)


def by_notes(expand_x, expert_ids, notes, ends):
    """The row of each entry [n, k, H] from the notes of rows."""
    rows = expand_x.shape[0]
    note = notes[: rows * _WORDS].reshape(rows, _WORDS).to(torch.int64)
    n, slots = expert_ids.shape
    used = torch.arange(rows, device=notes.device) < ends[-1]
    entry = torch.where(used, note[:, 1] * slots + note[:, 2], n * slots)
    made = torch.zeros(n * slots + 1, expand_x.shape[1], device=expand_x.device)
    made = made.index_add(0, entry, torch.where(used.unsqueeze(1), wide(expand_x), 0.0))
    return made[:-1].unflatten(0, (n, slots))


def special(parts, expert_ids, ori_x, constants, experts, numbers):
    """Entries of special experts: 0, the token itself, or alpha1 · token + alpha2 · v."""
    zero, copy, const = numbers
    if zero + copy + const == 0:
        return parts
    first_copy, first_const = experts + zero, experts + zero + copy
    ids = expert_ids.to(torch.int64)
    if copy + const == 0:
        return parts
    token = wide(ori_x).unsqueeze(1)
    copied = (ids >= first_copy) & (ids < first_const)
    parts = torch.where(copied.unsqueeze(-1), token, parts)
    if const > 0:
        alpha1, alpha2, v = (wide(x) for x in constants)
        number = (ids - first_const).clamp(0, const - 1)
        made = alpha1[number].unsqueeze(-1) * token + alpha2[number].unsqueeze(-1) * v[number]
        parts = torch.where((ids >= first_const).unsqueeze(-1), made, parts)
    return parts


def summed(parts, expert_scales, shared, active_mask, dtype):
    """Weighted rows of each token, and what the shared expert made of it."""
    parts = parts * wide(expert_scales).unsqueeze(-1)
    if active_mask is not None and active_mask.ndim == 2:
        parts = torch.where(active_mask.bool().unsqueeze(-1), parts, 0.0)
    y = parts.sum(1)
    y = y if shared is None else y + wide(shared).reshape(y.shape)
    if active_mask is not None and active_mask.ndim == 1:
        y = torch.where(active_mask.bool().unsqueeze(-1), y, 0.0)
    return y.to(dtype)


def moe_distribute_combine(
    expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, tp_send_counts, x_active_mask,
    activation_scale, weight_scale, group_list, expand_scales, *, group_ep, ep_world_size, ep_rank_id,
    moe_expert_num, group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0, shared_expert_num=1,
    shared_expert_rank_num=0, global_bs=0, out_dtype=0, comm_quant_mode=0, group_list_type=0,
):  # fmt: skip
    """The weighted sum of each token's rows."""
    return combined_with_shared(
        expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, x_active_mask, None,
        ep_world_size=ep_world_size, moe_expert_num=moe_expert_num, tp_world_size=tp_world_size,
        shared_expert_rank_num=shared_expert_rank_num,
    )  # fmt: skip


def combined_with_shared(
    expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, x_active_mask, shared_expert_x, *,
    ep_world_size, moe_expert_num, tp_world_size, shared_expert_rank_num,
):  # fmt: skip
    """The same on top of what a shared expert made."""
    check_alone(ep_world_size, tp_world_size, shared_expert_rank_num)
    parts = by_places(expand_x, expert_ids, expand_idx, ep_send_counts, x_active_mask, moe_expert_num)
    return summed(parts, expert_scales, shared_expert_x, x_active_mask, expand_x.dtype)


def moe_distribute_combine_v2(
    expand_x, expert_ids, assist_info_for_combine, ep_send_counts, expert_scales, tp_send_counts,
    x_active_mask, activation_scale, weight_scale, group_list, expand_scales, shared_expert_x, elastic_info,
    ori_x, const_expert_alpha_1, const_expert_alpha_2, const_expert_v, performance_info, *, group_ep,
    ep_world_size, ep_rank_id, moe_expert_num, group_tp="", tp_world_size=0, tp_rank_id=0,
    expert_shard_type=0, shared_expert_num=1, shared_expert_rank_num=0, global_bs=0, out_dtype=0,
    comm_quant_mode=0, group_list_type=0, comm_alg="", zero_expert_num=0, copy_expert_num=0,
    const_expert_num=0,
):  # fmt: skip
    """The weighted sum of each token's rows by their notes, with special experts."""
    check_alone(ep_world_size, tp_world_size, shared_expert_rank_num, elastic_info)
    parts = by_notes(expand_x, expert_ids, assist_info_for_combine, ep_send_counts)
    constants = const_expert_alpha_1, const_expert_alpha_2, const_expert_v
    numbers = zero_expert_num, copy_expert_num, const_expert_num
    parts = special(parts, expert_ids, ori_x, constants, moe_expert_num, numbers)
    return summed(parts, expert_scales, shared_expert_x, x_active_mask, expand_x.dtype)


def moe_distribute_combine_add_rms_norm(
    expand_x, expert_ids, assist_info, ep_send_counts, expert_scales, residual_x, gamma, tp_send_counts,
    x_active_mask, activation_scale, weight_scale, group_list, expand_scales, shared_expert_x, elastic_info,
    ori_x, const_expert_alpha_1, const_expert_alpha_2, const_expert_v, *, group_ep, ep_world_size, ep_rank_id,
    moe_expert_num, group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0, shared_expert_num=1,
    shared_expert_rank_num=0, global_bs=0, out_dtype=0, comm_quant_mode=0, group_list_type=0, comm_alg="",
    norm_eps=1e-6, zero_expert_num=0, copy_expert_num=0, const_expert_num=0,
):  # fmt: skip
    """(norm, rstd, sum) of the combined rows and a residual [n, 1, H]."""
    rows = moe_distribute_combine_v2(
        wide(expand_x), expert_ids, assist_info, ep_send_counts, expert_scales, None, x_active_mask, None,
        None, None, None, shared_expert_x, elastic_info, ori_x, const_expert_alpha_1, const_expert_alpha_2,
        const_expert_v, None, group_ep=group_ep, ep_world_size=ep_world_size, ep_rank_id=ep_rank_id,
        moe_expert_num=moe_expert_num, tp_world_size=tp_world_size,
        shared_expert_rank_num=shared_expert_rank_num, zero_expert_num=zero_expert_num,
        copy_expert_num=copy_expert_num, const_expert_num=const_expert_num,
    )  # fmt: skip
    x = rows.unsqueeze(1) + wide(residual_x).reshape(rows.shape[0], 1, -1)
    y, rstd = normalised(x, gamma, norm_eps)
    return y.to(residual_x.dtype), rstd, x.to(residual_x.dtype)


# What other ranks would need, and how rows travel to them.
_TRAVEL = (
    "group_ep", "ep_rank_id", "group_tp", "tp_rank_id", "expert_shard_type", "shared_expert_num", "global_bs",
    "tp_send_counts", "expand_scales", "activation_scale", "weight_scale", "group_list", "out_dtype",
    "comm_quant_mode", "group_list_type",
)  # fmt: skip
ROWS = (
    Row("npu_moe_distribute_dispatch", "MoeDistributeDispatch", moe_distribute_dispatch),
    Row(
        "npu_moe_distribute_dispatch_v2", "MoeDistributeDispatchV2", moe_distribute_dispatch_v2,
        {"y_dtype": made(ir_type, "y_dtype")}, ignored=("x_dtype", "scales_dtype"),
    ),
    Row(
        "npu_moe_distribute_combine", "", combined_with_shared, ignored=_TRAVEL,
        when=lambda given: given["shared_expert_x"] is not None,
    ),
    Row(
        "npu_moe_distribute_combine", "MoeDistributeCombine", moe_distribute_combine,
        ignored=("shared_expert_x",),
    ),
    Row("npu_moe_distribute_combine_v2", "MoeDistributeCombineV2", moe_distribute_combine_v2),
    Row(
        "npu_moe_distribute_combine_add_rms_norm", "MoeDistributeCombineAddRmsNorm",
        moe_distribute_combine_add_rms_norm, {"assist_info": "expand_idx"},
    ),
)  # fmt: skip
