"""Route tokens in a mixture of experts: select experts, sort rows by expert, and restore the order; and merge
tokens.

There are n tokens with k experts each. Sorting is stable, so results do not depend on the device; rows
without a token are 0 before they are quantized.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.core.errors import BadAttribute
from torchair.ops.npu.common.op_spec import NpuOp, made
from torchair.ops.npu.common.packing import operand, scale_of
from torchair.ops.numerics.formats import E2M1, E4M3, E5M2, HIF8, INT4, INT8, dynamic, mx, static, store, wide

# Gating

_SOFTMAX, _SIGMOID = 0, 1


def best(x, k):
    """Return (values, positions) of the k largest along the last dim; of equal ones the first."""
    values, order = x.sort(dim=-1, descending=True, stable=True)
    return values[..., :k], order[..., :k]


def in_best_groups(x, groups, selected, mode):
    """Set x to -inf outside the best groups, ranked by their largest value (0), or their two largest (1)."""
    parts = x.unflatten(-1, (groups, -1))
    worth = parts.amax(-1) if mode == 0 else best(parts, 2)[0].sum(-1)
    _, chosen = best(worth, selected)
    keeps = torch.zeros_like(worth, dtype=torch.bool).scatter(-1, chosen, True)
    return torch.where(keeps.unsqueeze(-1), parts, -torch.inf).flatten(-2)


def moe_gating_top_k(
    x, bias, input_ids, tid2eid, *, k, k_group=1, group_count=1, group_select_mode=0, renorm=0, norm_type=0,
    out_flag=False, routed_scaling_factor=1.0, eps=1e-20,
):  # fmt: skip
    """Return (weights, experts, all scores); the bias affects only the choice. Ids may select experts."""
    if renorm != 0 or norm_type not in (_SOFTMAX, _SIGMOID):
        raise BadAttribute("gating supports norm_type 0 and 1, and renorm 0", got=f"{norm_type} and {renorm}")
    scores = torch.softmax(wide(x), -1) if norm_type == _SOFTMAX else torch.sigmoid(wide(x))
    if tid2eid is not None:
        chosen = tid2eid[input_ids.to(torch.int64)].to(torch.int64).reshape(*x.shape[:-1], k)
    else:
        ranked = scores if bias is None else scores + wide(bias)
        if group_count > 1:
            ranked = in_best_groups(ranked, group_count, k_group, group_select_mode)
        _, chosen = best(ranked, k)
    y = scores.gather(-1, chosen)
    if norm_type == _SIGMOID:
        y = y / (y.sum(-1, keepdim=True) + eps)
    return (y * routed_scaling_factor).to(x.dtype), chosen.to(torch.int32), scores.float()


def marked(chosen, finished, experts):
    """Give finished rows the expert number after the last, so that they go to no expert."""
    chosen = chosen if finished is None else torch.where(finished.unsqueeze(-1), experts, chosen)
    return chosen.to(torch.int32)


def moe_gating_top_k_softmax(x, finished, *, k):
    """Return (weights, experts, rows): row j·n + i is slot j of token i."""
    values, chosen = best(torch.softmax(wide(x), -1), k)
    rows = torch.arange(chosen.numel(), device=x.device, dtype=torch.int32)
    rows = rows.reshape(k, -1).t().reshape(chosen.shape)
    return values.to(x.dtype), marked(chosen, finished, x.shape[-1]), rows.contiguous()


def moe_gating_top_k_softmax_v2(x, finished, *, k, renorm=0, output_softmax=False):
    """Return (weights, experts, softmax of all or empty); renorm uses the softmax over the chosen."""
    scores = wide(x) if renorm else torch.softmax(wide(x), -1)
    values, chosen = best(scores, k)
    values = torch.softmax(values, -1) if renorm else values
    selected = scores.float() if output_softmax and not renorm else x.new_empty(0, dtype=torch.float32)
    return values.to(x.dtype), marked(chosen, finished, x.shape[-1]), selected


# Rows sorted by expert


def placed(order):
    """Return the inverse of an order: the new place of each entry."""
    return torch.zeros_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device))


def moe_init_routing(x, row_idx, expert_idx, *, active_num):
    """Return (rows of x sorted by expert, the new place of each entry of `row_idx`, sorted experts)."""
    experts, order = expert_idx.flatten().sort(stable=True)
    source = row_idx.flatten().to(torch.int64)[order]
    selected = torch.sym_min(active_num, x.shape[0]) * expert_idx.shape[1]
    rows = x[source[:selected] % x.shape[0]]
    return rows, placed(source).to(torch.int32), experts


def expert_counts(experts, first, last):
    """Return the number of entries of each expert first … last - 1."""
    numbers = torch.arange(first, last, device=experts.device)
    return (experts.unsqueeze(0) == numbers.unsqueeze(1)).sum(1)


def count_pairs(counts, first, size):
    """Return [size, 2]: (expert, count) of the experts that have rows, then zeros."""
    _, order = (counts == 0).to(torch.int64).sort(stable=True)
    pairs = torch.stack((order + first, counts[order]), 1)
    pairs = torch.where(pairs[:, 1:] > 0, pairs, 0)
    return F.pad(pairs, (0, 0, 0, size - pairs.shape[0]))


# quant_mode -> type, of modes with a power of two for 32 values (and the least peak they assume), ...
_MICROSCALED = {
    2: (E5M2, 1, 0.0), 3: (E4M3, 1, 0.0), 9: (E2M1, 0, 0.0), 16: (E5M2, 1, 1e-4), 17: (E4M3, 1, 1e-4),
}  # fmt: skip
# ... with a float32 scale for 128 values, ...
_BLOCKS = {11: E5M2, 12: E4M3, 4: E5M2, 5: E4M3, 14: E5M2, 15: E4M3}
# ... with a scale for each row.
_PER_ROW = {1: INT8, 8: HIF8, 13: INT4}
_STATIC, _CAST, _PER_TENSOR = 0, 6, 7


def routed_type(mode):
    """Return the type of the rows that a mode produces, if torch lacks it."""
    return {_CAST: HIF8, _PER_TENSOR: HIF8, 8: HIF8, 9: E2M1, 13: INT4}.get(mode)


def quantized(rows, scale, offset, mode):
    """Return (stored rows, scales or None); `scale` and `offset` are per row, or for all rows."""
    if mode in _MICROSCALED:
        kind, algorithm, least = _MICROSCALED[mode]
        return mx(rows, kind, scale_alg=algorithm, lowest=least)
    if mode in _BLOCKS:
        stored, scales = dynamic(wide(rows).unflatten(-1, (-1, 128)), _BLOCKS[mode])
        return stored.flatten(-2), scales
    if mode in _PER_ROW:
        return dynamic(wide(rows) if scale is None else wide(rows) * wide(scale), _PER_ROW[mode])
    if mode == _STATIC:
        return static(rows, scale, offset, INT8), None
    assert mode in (_CAST, _PER_TENSOR), f"quant_mode {mode} of routing"
    return store(wide(rows) if mode == _CAST else wide(rows) * wide(scale), HIF8), None


def of_experts(part, experts):
    """Return a table's row for each entry's expert, counted in the range; a single row is for all."""
    if part is None or part.ndim < 2 or part.shape[0] == 1:
        return part
    return part[experts.clamp(0, part.shape[0] - 1)]


def moe_init_routing_v3(
    x, expert_idx, scale, offset, *, active_num=-1, expert_capacity=-1, expert_num=-1, drop_pad_mode=0,
    expert_tokens_num_type=0, expert_tokens_num_flag=False, quant_mode=-1, active_expert_range=(),
    row_idx_type=0,
):  # fmt: skip
    """Return (rows sorted by expert, the new place of entry i·k + j or the entry of each row, rows per
    expert, scales).

    Experts outside the range get no rows; with `drop_pad_mode` every expert has `expert_capacity` rows.
    """
    first, last = active_expert_range or (0, expert_num)
    if last <= first:
        raise BadAttribute(
            "routing needs the number of experts", next="pass expert_num or active_expert_range"
        )
    flat = expert_idx.flatten().to(torch.int64)
    active = (flat >= first) & (flat < last)
    # Inactive entries are sorted to the end.
    experts, order = torch.where(active, flat, last).sort(stable=True)
    place, sources = placed(order), torch.where(experts < last, order, -1)
    counts = expert_counts(flat, first, last)
    if drop_pad_mode == 1:
        target, entry = in_capacity(torch.where(active, flat - first, -1), place, counts, expert_capacity)
    elif active_num > 0:
        target = torch.where(active & (place < active_num), place, -1)
        entry = sources[: torch.sym_min(active_num, flat.shape[0])]
    else:
        target, entry = torch.where(active, place, -1), sources
    used, known = entry >= 0, entry.clamp(min=0)
    rows, scales = routed(
        x, scale, offset, quant_mode, known // expert_idx.shape[1], used, flat[known] - first
    )
    if drop_pad_mode == 1:
        rows = rows.unflatten(0, (last - first, expert_capacity))
    index = target if row_idx_type == 0 else sources
    tokens = flat.new_zeros(0)
    if expert_tokens_num_flag:
        kinds = (counts.cumsum, lambda _: counts, lambda _: count_pairs(counts, first, expert_num))
        tokens = kinds[expert_tokens_num_type](0)
    return rows, index.to(torch.int32), tokens.to(torch.int64), scales


def in_capacity(experts, place, counts, capacity):
    """Return (row of each entry, entry of each row) with equally many rows per expert; -1 if none."""
    starts = counts.cumsum(0) - counts
    inside = place - starts[experts.clamp(min=0)]
    target = torch.where((experts >= 0) & (inside < capacity), experts * capacity + inside, -1)
    size = counts.shape[0] * capacity
    entries = torch.arange(experts.shape[0], device=experts.device)
    # One more row receives the dropped entries.
    selected = torch.full((size + 1,), -1, device=experts.device)
    return target, selected.scatter(0, torch.where(target >= 0, target, size), entries)[:size]


def routed(x, scale, offset, mode, token, used, experts):
    """Return (the stored rows of these tokens, their scales or an empty tensor); other rows are 0."""
    small = x.is_floating_point() and x.dtype.itemsize == 1
    rows = x.view(torch.uint8)[token] if small else x[token]
    rows = torch.where(used.unsqueeze(-1), rows, 0)
    rows = rows.view(x.dtype) if small else rows
    if mode == -1:
        return rows, rows.new_empty(0, dtype=torch.float32) if scale is None else scale[token]
    stored, scales = quantized(rows, of_experts(scale, experts), of_experts(offset, experts), mode)
    return stored, rows.new_empty(0, dtype=torch.float32) if scales is None else scales


def moe_compute_expert_tokens(sorted_experts, *, num_experts):
    """Return the row at which each expert ends: the number of entries that are at most e."""
    numbers = torch.arange(num_experts, device=sorted_experts.device, dtype=sorted_experts.dtype)
    return torch.searchsorted(sorted_experts, numbers, right=True).to(torch.int32)


# The way back


def moe_finalize_routing(expanded_x, x1, x2, bias, scales, expanded_row_idx, expanded_expert_idx):
    """Return the weighted sum of each token's rows, the biases of their experts, and the skipped parts."""
    return moe_finalize_routing_v2(expanded_x, expanded_row_idx, x1, x2, bias, scales, expanded_expert_idx)


def moe_finalize_routing_v2(
    expanded_x, expanded_row_idx, x1, x2, bias, scales, expert_idx, *, drop_pad_mode=0, k=1
):
    """Compute `moe_finalize_routing`, counting by slot (modes 0, 1) or token (2, 3); -1 is a zero row."""
    rows = expanded_x.flatten(0, -2)
    table = scales if scales is not None else expert_idx
    slots = k if table is None else table.shape[1]
    entry = expanded_row_idx.to(torch.int64)
    entry = entry.reshape(slots, -1).t() if drop_pad_mode in (0, 1) else entry.reshape(-1, slots)
    parts = torch.where((entry >= 0).unsqueeze(-1), wide(rows)[entry.clamp(min=0)], 0.0)
    if bias is not None:
        parts = parts + wide(bias)[expert_idx.to(torch.int64)]
    parts = parts if scales is None else parts * wide(scales).unsqueeze(-1)
    y = parts.sum(1)
    for skipped in (x1, x2):
        y = y if skipped is None else y + wide(skipped)
    return y.to(expanded_x.dtype)


def moe_re_routing(
    tokens, expert_token_num_per_rank, per_token_scales, *, expert_token_num_type=1, idx_type=0
):
    """Return (tokens ordered by expert and rank instead of rank and expert, their scales, the order, rows per
    expert).
    """
    counts = expert_token_num_per_rank.to(torch.int64)
    sources = counts.flatten().cumsum(0) - counts.flatten()
    by_expert = counts.t().flatten()
    ends = by_expert.cumsum(0)
    row = torch.arange(tokens.shape[0], device=tokens.device)
    part = torch.bucketize(row, ends, right=True)
    known = part.clamp(max=by_expert.shape[0] - 1)
    inside = row - (ends - by_expert)[known]
    source = sources.reshape(counts.shape).t().flatten()[known] + inside
    # Rows after the last expert stay.
    source = torch.where(part < by_expert.shape[0], source, row)
    scales = per_token_scales
    scales = tokens.new_empty(0, dtype=torch.float32) if scales is None else scales[source]
    index = source if idx_type == 0 else placed(source)
    totals = counts.sum(0)
    totals = totals if expert_token_num_type == 1 else totals.cumsum(0)
    return tokens[source], scales, index.to(torch.int32), totals.to(expert_token_num_per_rank.dtype)


def moe_update_expert(
    expert_ids, eplb_table, expert_scales, pruning_threshold, active_mask, *, local_rank_id=-1, world_size=-1,
    balance_mode=0,
):  # fmt: skip
    """Return (physical experts, which of them are used): a copy of the expert by rank (0) or by token (1);
    weights below the threshold's share of their sum are pruned.
    """
    table = eplb_table[expert_ids.to(torch.int64)].to(torch.int64)
    copies = table[..., 0]
    if balance_mode == 0:
        column = local_rank_id // (-(-world_size // copies))
    else:
        column = torch.arange(expert_ids.shape[0], device=table.device).unsqueeze(1) % copies
    chosen = table.gather(-1, 1 + column.unsqueeze(-1)).squeeze(-1)
    keeps = torch.ones_like(expert_ids, dtype=torch.bool)
    if expert_scales is not None:
        weights = wide(expert_scales)
        threshold = 0.0 if pruning_threshold is None else wide(pruning_threshold).reshape(1, -1)
        keeps = weights >= threshold * weights.sum(-1, keepdim=True)
    keeps = keeps if active_mask is None else keeps & active_mask.unsqueeze(-1)
    return chosen.to(expert_ids.dtype), keeps


# Merging of tokens

_PARTIAL_SUMS = 8


def merged_count(rate, a, b):
    """Return the number of merged tokens."""
    return torch.sym_int(rate * (a.shape[1] + b.shape[1]))


def rows_at(x, index):
    """Return x [B, S, H] at index [B, T]."""
    return x.gather(1, index.to(torch.int64).unsqueeze(-1).expand(-1, -1, x.shape[2]))


def tome_merge(token_a, token_b, topk_indice, arg_max, *, topRate=0.5):
    """Return (tokens a that stay, sums of b with the tokens merged into them, the number of tokens in each
    sum).

    Sums may be split into parts that are added later; here the first part has all of it.
    """
    count = merged_count(topRate, token_a, token_b)
    gone, selected = topk_indice[:, :count].to(torch.int64), topk_indice[:, count:]
    target = arg_max.to(torch.int64).gather(1, gone)
    sums = wide(token_b).scatter_add(
        1, target.unsqueeze(-1).expand(-1, -1, token_b.shape[2]), wide(rows_at(token_a, gone))
    )
    ones = torch.ones(token_b.shape[:2], device=token_b.device)
    counts = ones.scatter_add(1, target, torch.ones_like(target, dtype=torch.float32))
    sums, counts = (
        F.pad(x.unsqueeze(1), (*(0, 0) * (x.ndim - 1), 0, _PARTIAL_SUMS - 1))
        for x in (sums.to(token_b.dtype), counts)
    )
    return rows_at(token_a, selected), sums, counts


def tome_unmerge(atten_out, Ori_IndiceA, Ori_IndiceB, TOPK_Indice, Arg_Max, *, top_r_rate=0.5):
    """Restore the sequence before merging: every position gets the row of its merged token."""
    count = merged_count(top_r_rate, Ori_IndiceA, Ori_IndiceB)
    order = TOPK_Indice.to(torch.int64)
    stayed = Ori_IndiceA.shape[1] - count
    first_b = stayed + torch.arange(Ori_IndiceB.shape[1], device=order.device)
    into = stayed + Arg_Max.to(torch.int64).gather(1, order[:, :count])
    own = torch.arange(stayed, device=order.device).expand(order.shape[0], -1)
    sources = torch.cat((into, own, first_b.expand(order.shape[0], -1)), 1)
    positions = torch.cat((Ori_IndiceA.to(torch.int64).gather(1, order), Ori_IndiceB.to(torch.int64)), 1)
    return rows_at(atten_out, torch.zeros_like(sources).scatter(1, positions, sources))


def _is_whole(given):
    """Return whether the first version of the op applies: it has one mode, and needs all but one
    skipped part.
    """
    parts = ("skip1", "bias", "scales", "export_for_source_row")
    return all(given[name] is not None for name in parts) and not given["drop_pad_mode"]


_BACK = {
    "expanded_x": "expanded_permuted_rows",
    "x1": "skip1",
    "x2": "skip2",
    "expanded_row_idx": "expanded_src_to_dst_row",
}
ROWS = (
    NpuOp("npu_moe_gating_top_k", "MoeGatingTopK", moe_gating_top_k),
    NpuOp("npu_inference::npu_moe_gating_top_k", "MoeGatingTopK", moe_gating_top_k),
    NpuOp("npu_moe_gating_top_k_softmax", "MoeGatingTopKSoftmax", moe_gating_top_k_softmax),
    NpuOp("npu_moe_gating_top_k_softmax_v2", "MoeGatingTopKSoftmaxV2", moe_gating_top_k_softmax_v2),
    NpuOp("npu_moe_init_routing", "MoeInitRouting", moe_init_routing),
    NpuOp(
        "npu_moe_init_routing_v2", "MoeInitRoutingV3", moe_init_routing_v3,
        holds={"x": operand("x", "x_dtype", of_bytes=HIF8), "scale": scale_of("scale")},
        makes={0: made(routed_type, "quant_mode")}, word=torch.uint8,
    ),
    NpuOp(
        "npu_moe_compute_expert_tokens", "MoeComputeExpertTokens", moe_compute_expert_tokens,
        {"sorted_experts": "sorted_expert_for_source_row", "num_experts": "num_expert"},
    ),
    NpuOp(
        "npu_moe_finalize_routing", "MoeFinalizeRouting", moe_finalize_routing,
        {**_BACK, "expanded_expert_idx": "export_for_source_row"}, when=_is_whole,
        ignored=("drop_pad_mode", "k"),
    ),
    NpuOp(
        "npu_moe_finalize_routing", "MoeFinalizeRoutingV2", moe_finalize_routing_v2,
        {**_BACK, "expert_idx": "export_for_source_row"},
    ),
    NpuOp(
        "npu_moe_re_routing", "MoeReRouting", moe_re_routing,
        holds={"tokens": operand("tokens", "tokens_dtype", of_bytes=HIF8)}, makes={0: "tokens"},
    ),
    NpuOp("npu_moe_update_expert", "MoeUpdateExpert", moe_update_expert),
    NpuOp("npu_inference::npu_tome_merge", "TomeMerge", tome_merge, {"topRate": "top_rate"}),
    NpuOp(
        "npu_inference::npu_tome_unmerge", "TomeUnmerge", tome_unmerge,
        {
            "Ori_IndiceA": "ori_indice_a", "Ori_IndiceB": "ori_indice_b", "TOPK_Indice": "topk_indice",
            "Arg_Max": "arg_max", "top_r_rate": "top_rate",
        },
    ),
)  # fmt: skip
