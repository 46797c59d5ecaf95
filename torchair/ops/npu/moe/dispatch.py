"""Send rows to their experts and back, with all experts in one process or some on each rank of a group.

Every rank gathers the rows of all ranks and selects those of its experts, ordered by (expert, source rank,
token); rows after the last used one are 0. On the way back, every rank gathers the rows of all experts and
selects its own. So no size depends on data. Rows are sent unchanged: `comm_quant_mode` is a hint.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.core.errors import BadGroup, UnsupportedOp
from torchair.ops.npu.common.expert_ranks import ExpertRanks, expert_ranks
from torchair.ops.npu.common.op_spec import NpuOp, made
from torchair.ops.npu.dense.norm import normalized
from torchair.ops.npu.moe.routing import expert_counts, placed
from torchair.ops.numerics.formats import INT8, dynamic, ir_type, static, wide

# Words of the note for each row: rank, token and slot of its origin, then zeros.
_WORDS = 128


def is_sent(expert_ids, active_mask, experts):
    """Return the entries (token, slot) that go to an expert: [n, k]; special experts have higher numbers."""
    sent = (expert_ids >= 0) & (expert_ids < experts)
    if active_mask is None:
        return sent
    return sent & (active_mask if active_mask.ndim == 2 else active_mask.unsqueeze(1)).bool()


def is_active(expert_ids, active_mask):
    """Return the tokens that go to shared experts: [n]."""
    if active_mask is None:
        return torch.ones_like(expert_ids[:, 0], dtype=torch.bool)
    return active_mask.bool().any(1) if active_mask.ndim == 2 else active_mask.bool()


def filled(x, rows, value=0):
    """Pad or cut the first dim to `rows` rows."""
    return F.pad(x, (*(0, 0) * (x.ndim - 1), 0, rows - x.shape[0]), value=value)


def tokens_of_a_rank(own, global_bs, ranks):
    """Return the maximum number of tokens of a rank: that of this rank, or its share of the global batch."""
    if not global_bs:
        return own
    tokens = global_bs // ranks
    if tokens < own:
        raise BadGroup(
            "a rank has more tokens than its share of global_bs",
            got=f"{own} tokens   global_bs {global_bs}   {ranks} ranks",
            next="set global_bs to the largest number of tokens of any rank, times the ranks",
        )
    return tokens


def selected_here(expert_ids, active_mask, owners: ExpertRanks, tokens):
    """Return which expert of this rank each entry of all ranks selects, or the number of local experts if
    none: [ranks · tokens, k], for a shared expert [ranks · tokens, 1].
    """
    experts = owners.experts
    asked = torch.where(is_sent(expert_ids, active_mask, experts), expert_ids.to(torch.int64), experts)
    if owners.shared:
        active = is_active(expert_ids, active_mask).to(torch.int64)
        asked = torch.cat((asked, active.unsqueeze(1) + experts), 1)
    asked = owners.gather(filled(asked, tokens, experts))
    if owners.is_shared:
        source = torch.arange(asked.shape[0], device=asked.device) // tokens
        comes = (asked[:, -1] > experts) & (source % owners.copies == owners.rank % owners.copies)
        return torch.where(comes, 0, 1).unsqueeze(1)
    asked = asked[:, : expert_ids.shape[1]] - owners.first
    return torch.where((asked >= 0) & (asked < owners.local), asked, owners.local)


def scales_here(scales, owners: ExpertRanks, expert):
    """Return the scale of each row's expert; a table [experts, H] may begin with shared experts."""
    if scales is None or scales.ndim == 1:
        return scales
    if owners.is_shared and scales.shape[0] == owners.experts:
        raise UnsupportedOp(
            "quantizing the rows of a shared expert with these scales",
            got=f"scales {list(scales.shape)}",
            near=f"scales of {owners.shared} shared experts and {owners.experts} others",
        )
    first = owners.first if owners.is_shared else owners.first + scales.shape[0] - owners.experts
    return scales[first + expert]


def dispatched(
    x,
    expert_ids,
    scales,
    active_mask,
    expert_scales,
    owners: ExpertRanks,
    *,
    quant_mode,
    global_bs,
    counts_type,
):
    """Return (rows, scales, rows per expert, ends per expert and source, weights, entries, tokens)."""
    if quant_mode not in (0, 1, 2):
        raise UnsupportedOp(f"dispatching with quant_mode {quant_mode}", near="0, 1 and 2")
    tokens = tokens_of_a_rank(x.shape[0], global_bs, owners.ranks)
    asked = selected_here(expert_ids, active_mask, owners, tokens)
    slots, flat = asked.shape[1], asked.flatten()
    _, order = flat.sort(stable=True)
    entries = torch.where(flat[order] < owners.here, order, -1)
    entries = filled(entries, owners.rows(tokens, expert_ids.shape[1]), -1)
    known, used = entries.clamp(min=0), entries >= 0
    rows = torch.where(used.unsqueeze(1), owners.gather(filled(x, tokens))[known // slots], 0)
    rows, row_scales = quantized_rows(
        rows, scales_here(scales, owners, flat[known].clamp(max=owners.here - 1)), quant_mode
    )
    source = torch.arange(flat.shape[0], device=flat.device) // (tokens * slots)
    ends = expert_counts(flat * owners.ranks + source, 0, owners.here * owners.ranks).cumsum(0)
    last = ends[owners.ranks - 1 :: owners.ranks]
    counts = last if counts_type == 0 else last.diff(prepend=last.new_zeros(1))
    weights = weights_here(expert_scales, owners, tokens, known, used)
    return rows, row_scales, counts, ends.to(torch.int32), weights, entries, tokens


def quantized_rows(rows, scale, mode):
    """Return (rows, a scale for each): unchanged, times a scale, or by their largest magnitude."""
    if mode == 1:
        rows = static(rows, scale, None, INT8)
    elif mode == 2:
        return dynamic(wide(rows) if scale is None else wide(rows) * wide(scale), INT8)
    return rows, torch.zeros(rows.shape[0], device=rows.device)


def weights_here(expert_scales, owners: ExpertRanks, tokens, known, used):
    """Return the weight of each row; rows of shared experts have weight 1."""
    if expert_scales is None:
        return torch.zeros(known.shape[0], device=known.device)
    everyone = owners.gather(filled(wide(expert_scales), tokens)).flatten()
    return torch.where(used, 1.0 if owners.is_shared else everyone[known], 0.0)


def places_inside(expert_ids, active_mask, experts):
    """Return the index of each entry of this rank among its entries for the same expert: [n · k]."""
    sent = is_sent(expert_ids, active_mask, experts).flatten()
    flat = torch.where(sent, expert_ids.flatten().to(torch.int64), experts)
    _, order = flat.sort(stable=True)
    starts = F.pad(expert_counts(flat, 0, experts).cumsum(0), (1, 0))
    return torch.where(sent, placed(order) - starts[flat], 0).to(torch.int32)


def moe_distribute_dispatch(
    x, expert_ids, scales, x_active_mask, expert_scales, *, group_ep, ep_world_size, ep_rank_id,
    moe_expert_num, group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0, shared_expert_num=1,
    shared_expert_rank_num=0, quant_mode=0, global_bs=0, expert_token_nums_type=1,
):  # fmt: skip
    """Return (rows, scales, index of each entry in its expert, rows per expert, ends, zeros, weights)."""
    owners = expert_ranks(
        group_ep, ep_world_size, ep_rank_id, moe_expert_num, tp_world_size, shared_expert_num,
        shared_expert_rank_num, expert_shard_type,
    )  # fmt: skip
    rows, row_scales, counts, ends, weights, _, _ = dispatched(
        x, expert_ids, scales, x_active_mask, expert_scales, owners, quant_mode=quant_mode,
        global_bs=global_bs, counts_type=expert_token_nums_type,
    )  # fmt: skip
    inside = places_inside(expert_ids, x_active_mask, moe_expert_num)
    nothing = torch.zeros(1, dtype=torch.int32, device=x.device)
    return rows, row_scales, inside, counts, ends, nothing, weights


def moe_distribute_dispatch_v2(
    x, expert_ids, scales, x_active_mask, expert_scales, elastic_info, performance_info, *, group_ep,
    ep_world_size, ep_rank_id, moe_expert_num, group_tp="", tp_world_size=0, tp_rank_id=0,
    expert_shard_type=0, shared_expert_num=1, shared_expert_rank_num=0, quant_mode=0, global_bs=0,
    expert_token_nums_type=1, comm_alg="", zero_expert_num=0, copy_expert_num=0, const_expert_num=0,
    y_dtype=0,
):  # fmt: skip
    """Dispatch with a note of the origin of each row, instead of indices."""
    owners = expert_ranks(
        group_ep, ep_world_size, ep_rank_id, moe_expert_num, tp_world_size, shared_expert_num,
        shared_expert_rank_num, expert_shard_type, elastic_info,
    )  # fmt: skip
    rows, row_scales, counts, ends, weights, entries, tokens = dispatched(
        x, expert_ids, scales, x_active_mask, expert_scales, owners, quant_mode=quant_mode,
        global_bs=global_bs, counts_type=expert_token_nums_type,
    )  # fmt: skip
    notes = notes_of(entries.clamp(min=0), tokens, expert_ids.shape[1], owners)
    nothing = torch.zeros(1, dtype=torch.int32, device=x.device)
    return rows, row_scales, notes, counts, ends, nothing, weights


def notes_of(entries, tokens, slots, owners: ExpertRanks):
    """Return rank, token and slot of each row; shared experts have slots after the others."""
    kinds = 1 if owners.is_shared else slots
    token, slot = entries // kinds, entries % kinds
    slot = slot + slots + owners.first if owners.is_shared else slot
    notes = torch.stack((token // tokens, token % tokens, slot), 1)
    return F.pad(notes, (0, _WORDS - 3)).flatten().to(torch.int32)


# The way back


def by_places(expand_x, expert_ids, places, ends, active_mask, owners: ExpertRanks, tokens):
    """Return the row of each entry [n, k, H], 0 for entries that were not sent, and of each shared expert
    [n, shared, H], from the indices of entries in their experts.
    """
    slots, ranks = expert_ids.shape[1], owners.ranks
    capacity = owners.most_rows(tokens, slots) if ranks > 1 else expand_x.shape[0]
    everyone = owners.gather(filled(wide(expand_x), capacity) if ranks > 1 else wide(expand_x))
    width = owners.local * ranks
    starts = owners.gather(F.pad(filled(ends, width).to(torch.int64), (1, 0))).reshape(ranks, width + 1)
    sent = is_sent(expert_ids, active_mask, owners.experts)
    chosen = torch.where(sent, expert_ids.to(torch.int64), 0)
    holder = owners.shared_ranks + chosen // owners.local
    start = starts[holder, chosen % owners.local * ranks + owners.rank]
    row = torch.where(sent, holder * capacity + start + places.reshape(expert_ids.shape), 0)
    parts = torch.where(sent.unsqueeze(-1), everyone[row], 0.0)
    if not owners.shared:
        return parts, None
    active = is_active(expert_ids, active_mask)
    copies = torch.arange(owners.shared, device=ends.device) * owners.copies + owners.rank % owners.copies
    first = copies * capacity + starts[copies, owners.rank]
    row = torch.where(active.unsqueeze(1), first + (active.cumsum(0) - 1).unsqueeze(1), 0)
    return parts, torch.where(active[:, None, None], everyone[row], 0.0)


def by_notes(expand_x, expert_ids, notes, ends, owners: ExpertRanks, tokens):
    """Return the rows like `by_places`, from their notes."""
    rows = expand_x.shape[0]
    n, slots = expert_ids.shape
    note = notes[: rows * _WORDS].reshape(rows, _WORDS)[:, :3].to(torch.int64)
    used = torch.arange(rows, device=notes.device) < ends[-1]
    values = torch.where(used.unsqueeze(1), wide(expand_x), 0.0)
    source = torch.where(used, note[:, 0], -1)
    note = torch.stack((source, note[:, 1], note[:, 2]), 1)
    if owners.ranks > 1:
        capacity = owners.most_rows(tokens, slots)
        values, note = owners.gather(filled(values, capacity)), owners.gather(filled(note, capacity, -1))
    kinds = slots + owners.shared
    entry = torch.where(note[:, 0] == owners.rank, note[:, 1] * kinds + note[:, 2], n * kinds)
    made = torch.zeros(n * kinds + 1, expand_x.shape[1], device=expand_x.device)
    parts = made.index_add(0, entry, values)[:-1].unflatten(0, (n, kinds))
    return parts[:, :slots], parts[:, slots:] if owners.shared else None


def special(parts, expert_ids, ori_x, constants, experts, numbers):
    """Return the entries of special experts: 0, the token itself, or alpha1 · token + alpha2 · v."""
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


def summed(parts, expert_scales, shared_rows, shared, active_mask, dtype):
    """Return each token's weighted rows plus the results of shared experts, on other ranks and local."""
    parts = parts * wide(expert_scales).unsqueeze(-1)
    if active_mask is not None and active_mask.ndim == 2:
        parts = torch.where(active_mask.bool().unsqueeze(-1), parts, 0.0)
    y = parts.sum(1) if shared_rows is None else parts.sum(1) + shared_rows.sum(1)
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
    """Return the weighted sum of each token's rows."""
    return combined_with_shared(
        expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, x_active_mask, None,
        group_ep=group_ep, ep_world_size=ep_world_size, ep_rank_id=ep_rank_id, moe_expert_num=moe_expert_num,
        tp_world_size=tp_world_size, expert_shard_type=expert_shard_type, shared_expert_num=shared_expert_num,
        shared_expert_rank_num=shared_expert_rank_num, global_bs=global_bs,
    )  # fmt: skip


def combined_with_shared(
    expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, x_active_mask, shared_expert_x, *,
    group_ep, ep_world_size, ep_rank_id, moe_expert_num, tp_world_size, expert_shard_type, shared_expert_num,
    shared_expert_rank_num, global_bs,
):  # fmt: skip
    """Return the weighted sum plus the result of a shared expert."""
    owners = expert_ranks(
        group_ep, ep_world_size, ep_rank_id, moe_expert_num, tp_world_size, shared_expert_num,
        shared_expert_rank_num, expert_shard_type,
    )  # fmt: skip
    tokens = tokens_of_a_rank(expert_ids.shape[0], global_bs, owners.ranks)
    parts, shared = by_places(expand_x, expert_ids, expand_idx, ep_send_counts, x_active_mask, owners, tokens)
    return summed(parts, expert_scales, shared, shared_expert_x, x_active_mask, expand_x.dtype)


def moe_distribute_combine_v2(
    expand_x, expert_ids, assist_info_for_combine, ep_send_counts, expert_scales, tp_send_counts,
    x_active_mask, activation_scale, weight_scale, group_list, expand_scales, shared_expert_x, elastic_info,
    ori_x, const_expert_alpha_1, const_expert_alpha_2, const_expert_v, performance_info, *, group_ep,
    ep_world_size, ep_rank_id, moe_expert_num, group_tp="", tp_world_size=0, tp_rank_id=0,
    expert_shard_type=0, shared_expert_num=1, shared_expert_rank_num=0, global_bs=0, out_dtype=0,
    comm_quant_mode=0, group_list_type=0, comm_alg="", zero_expert_num=0, copy_expert_num=0,
    const_expert_num=0,
):  # fmt: skip
    """Return the weighted sum of each token's rows by their notes, with special experts."""
    owners = expert_ranks(
        group_ep, ep_world_size, ep_rank_id, moe_expert_num, tp_world_size, shared_expert_num,
        shared_expert_rank_num, expert_shard_type, elastic_info,
    )  # fmt: skip
    tokens = tokens_of_a_rank(expert_ids.shape[0], global_bs, owners.ranks)
    parts, shared = by_notes(expand_x, expert_ids, assist_info_for_combine, ep_send_counts, owners, tokens)
    constants = const_expert_alpha_1, const_expert_alpha_2, const_expert_v
    numbers = zero_expert_num, copy_expert_num, const_expert_num
    parts = special(parts, expert_ids, ori_x, constants, moe_expert_num, numbers)
    return summed(parts, expert_scales, shared, shared_expert_x, x_active_mask, expand_x.dtype)


def moe_distribute_combine_add_rms_norm(
    expand_x, expert_ids, assist_info, ep_send_counts, expert_scales, residual_x, gamma, tp_send_counts,
    x_active_mask, activation_scale, weight_scale, group_list, expand_scales, shared_expert_x, elastic_info,
    ori_x, const_expert_alpha_1, const_expert_alpha_2, const_expert_v, *, group_ep, ep_world_size, ep_rank_id,
    moe_expert_num, group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0, shared_expert_num=1,
    shared_expert_rank_num=0, global_bs=0, out_dtype=0, comm_quant_mode=0, group_list_type=0, comm_alg="",
    norm_eps=1e-6, zero_expert_num=0, copy_expert_num=0, const_expert_num=0,
):  # fmt: skip
    """Return (norm, rstd, sum) of the combined rows and a residual [n, 1, H]."""
    rows = moe_distribute_combine_v2(
        wide(expand_x), expert_ids, assist_info, ep_send_counts, expert_scales, None, x_active_mask, None,
        None, None, None, shared_expert_x, elastic_info, ori_x, const_expert_alpha_1, const_expert_alpha_2,
        const_expert_v, None, group_ep=group_ep, ep_world_size=ep_world_size, ep_rank_id=ep_rank_id,
        moe_expert_num=moe_expert_num, tp_world_size=tp_world_size, expert_shard_type=expert_shard_type,
        shared_expert_num=shared_expert_num, shared_expert_rank_num=shared_expert_rank_num,
        global_bs=global_bs, zero_expert_num=zero_expert_num, copy_expert_num=copy_expert_num,
        const_expert_num=const_expert_num,
    )  # fmt: skip
    x = rows.unsqueeze(1) + wide(residual_x).reshape(rows.shape[0], 1, -1)
    y, rstd = normalized(x, gamma, norm_eps)
    return y.to(residual_x.dtype), rstd, x.to(residual_x.dtype)


# Hints on how rows are sent to other ranks.
_TRAVEL = (
    "group_tp", "tp_rank_id", "tp_send_counts", "expand_scales", "activation_scale", "weight_scale",
    "group_list", "out_dtype", "comm_quant_mode", "group_list_type",
)  # fmt: skip
ROWS = (
    NpuOp("npu_moe_distribute_dispatch", "MoeDistributeDispatch", moe_distribute_dispatch),
    NpuOp(
        "npu_moe_distribute_dispatch_v2", "MoeDistributeDispatchV2", moe_distribute_dispatch_v2,
        {"y_dtype": made(ir_type, "y_dtype")}, ignored=("x_dtype", "scales_dtype"),
    ),
    NpuOp(
        "npu_moe_distribute_combine", "", combined_with_shared, ignored=_TRAVEL,
        when=lambda given: given["shared_expert_x"] is not None,
    ),
    NpuOp(
        "npu_moe_distribute_combine", "MoeDistributeCombine", moe_distribute_combine,
        ignored=("shared_expert_x",),
    ),
    NpuOp("npu_moe_distribute_combine_v2", "MoeDistributeCombineV2", moe_distribute_combine_v2),
    NpuOp(
        "npu_moe_distribute_combine_add_rms_norm", "MoeDistributeCombineAddRmsNorm",
        moe_distribute_combine_add_rms_norm, {"assist_info": "expand_idx"},
    ),
)  # fmt: skip
