"""Routing of experts and merging of tokens in the npu library, written out token by token."""

from __future__ import annotations

import pytest
import torch

from tests.ops.compiled import MODES, agrees, compiles, ints, rand

npu, inference = torch.ops.npu, torch.ops.npu_inference
N, E, WIDTH = 6, 8, 64
LOGITS, X = rand(N, E), rand(N, WIDTH)
EXPERTS = ints(0, E, N, 2, dtype=torch.int32)


# Gating


def gate(x, k, *, bias=None, groups=1, kept=1, mode=0, sigmoid=False, factor=1.0):
    """(weights, experts, scores), one token at a time; of equal scores the first counts."""
    scores = torch.sigmoid(x) if sigmoid else torch.softmax(x, -1)
    weights, experts = torch.zeros(x.shape[0], k), torch.zeros(x.shape[0], k, dtype=torch.int32)
    size = x.shape[1] // groups
    for i, row in enumerate(scores):
        ranked = row if bias is None else row + bias
        worth = []
        for g in range(groups):
            part = sorted(ranked[g * size : (g + 1) * size].tolist(), reverse=True)
            worth.append((part[0] if mode == 0 else sum(part[:2]), -g))
        best = {-g for _, g in sorted(worth, reverse=True)[:kept]}
        order = sorted((-float(ranked[e]), e) for e in range(x.shape[1]) if e // size in best)[:k]
        experts[i] = torch.tensor([e for _, e in order])
        weights[i] = row[experts[i].long()]
        if sigmoid:
            weights[i] /= weights[i].sum()
    return weights * factor, experts, scores


BIAS = rand(E)
GATES = {
    "softmax": ({}, {}),
    "scaled": ({"routed_scaling_factor": 2.5}, {"factor": 2.5}),
    "sigmoid": ({"norm_type": 1}, {"sigmoid": True}),
    "groups": ({"group_count": 4, "k_group": 2}, {"groups": 4, "kept": 2}),
    "groups_by_two": (
        {"group_count": 4, "k_group": 2, "group_select_mode": 1, "norm_type": 1},
        {"groups": 4, "kept": 2, "mode": 1, "sigmoid": True},
    ),
}


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", GATES)
def test_gating_equals_token_loop(name, has_bias):
    given, meant = GATES[name]
    extra = {"bias": BIAS} if has_bias else {}
    for space in (npu, inference):
        got = space.npu_moe_gating_top_k(LOGITS, 3, out_flag=True, **given, **extra)
        torch.testing.assert_close(got, gate(LOGITS, 3, **meant, **extra))


def test_gating_by_token_ids():
    table, ids = ints(0, E, 20, 2), torch.tensor([3, 0, 19, 5, 5, 7])
    y, experts, _ = npu.npu_moe_gating_top_k(LOGITS, 2, input_ids=ids, tid2eid=table)
    torch.testing.assert_close(experts, table[ids].to(torch.int32))
    torch.testing.assert_close(y, LOGITS.softmax(-1).gather(1, table[ids]))


def test_gating_wants_what_it_knows():
    with pytest.raises(ValueError, match="renorm"):
        npu.npu_moe_gating_top_k(LOGITS, 2, renorm=1)


def softmax_gate(x, finished=None):
    weights, experts, _ = gate(x, 2)
    experts = experts if finished is None else torch.where(finished[:, None], E, experts)
    rows = torch.tensor([[j * N + i for j in range(2)] for i in range(N)], dtype=torch.int32)
    return weights, experts.to(torch.int32), rows


def routed(x, experts):
    """(rows of x by expert, place of entry i·k + j) by sorting pairs."""
    k = experts.shape[1]
    order = sorted(range(experts.numel()), key=lambda f: (int(experts.flatten()[f]), f))
    places = torch.empty(len(order), dtype=torch.int32)
    for place, f in enumerate(order):
        places[f] = place
    return torch.stack([x[f // k] for f in order]), places, order


def first_routing(x, rows, experts):
    """The same with rows counted slot by slot."""
    n, k = experts.shape
    order = sorted(range(n * k), key=lambda f: (int(experts.flatten()[f]), f))
    sources = [int(rows.flatten()[f]) for f in order]
    places = torch.empty(n * k, dtype=torch.int32)
    for place, source in enumerate(sources):
        places[source] = place
    return torch.stack([x[source % n] for source in sources]), places, experts.flatten().sort()[0]


def finalized(rows, skip1, skip2, bias, scales, places, experts):
    """Σ_j scale · (row + bias) + what was skipped; entries are counted slot by slot."""
    out = skip1 + skip2
    for i in range(N):
        for j in range(2):
            place = int(places[j * N + i])
            out[i] += scales[i, j] * (rows[place] + bias[int(experts[i, j])])
    return out


def rerouted(tokens, counts, scales):
    order, start = {}, 0
    for rank in range(counts.shape[0]):
        for expert in range(counts.shape[1]):
            order[expert, rank] = range(start, start + int(counts[rank, expert]))
            start += int(counts[rank, expert])
    index = torch.tensor([row for key in sorted(order) for row in order[key]])
    return tokens[index], scales[index], index.to(torch.int32), counts.sum(0)


SLOT_ROWS = softmax_gate(LOGITS)[2]
COUNTS = torch.tensor([[2, 0, 1], [1, 3, 0]])
SORTED = torch.tensor([0, 0, 2, 2, 2, 5], dtype=torch.int32)
PLACES = ints(0, 12, 12, dtype=torch.int32)
ROWS = {
    "gating": (
        lambda x, b: npu.npu_moe_gating_top_k(x, 2, bias=b, group_count=4, k_group=2, out_flag=True),
        (LOGITS, BIAS),
        lambda x, b: gate(x, 2, bias=b, groups=4, kept=2),
    ),
    "softmax": (lambda x: npu.npu_moe_gating_top_k_softmax(x, None, 2), (LOGITS,), softmax_gate),
    "softmax_finished": (
        lambda x, f: npu.npu_moe_gating_top_k_softmax(x, f, 2),
        (LOGITS, rand(N) > 0),
        softmax_gate,
    ),
    "softmax_kept": (
        lambda x: npu.npu_moe_gating_top_k_softmax_v2(x, k=2, output_softmax=True),
        (LOGITS,),
        lambda x: gate(x, 2),
    ),
    "softmax_of_the_chosen": (
        lambda x: npu.npu_moe_gating_top_k_softmax_v2(x, k=2, renorm=1)[:2],
        (LOGITS,),
        lambda x: (x.topk(2)[0].softmax(-1), x.topk(2)[1].to(torch.int32)),
    ),
    "init": (
        lambda x, r, e: npu.npu_moe_init_routing(x, r, e, N),
        (X, SLOT_ROWS, EXPERTS),
        first_routing,
    ),
    "init_fewer": (
        lambda x, r, e: npu.npu_moe_init_routing(x, r, e, 4),
        (X, SLOT_ROWS, EXPERTS),
        lambda x, r, e: (first_routing(x, r, e)[0][:8], *first_routing(x, r, e)[1:]),
    ),
    "init_counted": (
        lambda x, e: npu.npu_moe_init_routing_v2(x, e, expert_num=E, expert_tokens_num_flag=True)[:3],
        (X, EXPERTS),
        lambda x, e: (*routed(x, e)[:2], torch.bincount(e.flatten(), minlength=E).cumsum(0)),
    ),
    "init_quantised": (
        lambda x, e, s: npu.npu_moe_init_routing_v2(x, e, scale=s, expert_num=E, quant_mode=1),
        (X, EXPERTS, rand(E, WIDTH).abs()),
        lambda x, e, s: smoothed(x, e, s),
    ),
    "expert_tokens": (
        lambda s: npu.npu_moe_compute_expert_tokens(s, E),
        (SORTED,),
        lambda s: torch.tensor([2, 2, 5, 5, 5, 6, 6, 6], dtype=torch.int32),
    ),
    "finalize": (
        lambda r, a, b, c, s, p, e: npu.npu_moe_finalize_routing(r, a, b, c, s, p, e),
        (rand(12, WIDTH), X, rand(N, WIDTH, seed=1), rand(E, WIDTH), rand(N, 2), PLACES, EXPERTS),
        finalized,
    ),
    "finalize_without_skips": (
        lambda r, c, s, p, e: npu.npu_moe_finalize_routing(r, None, None, c, s, p, e, 0, 2),
        (rand(12, WIDTH), rand(E, WIDTH), rand(N, 2), PLACES, EXPERTS),
        lambda r, c, s, p, e: finalized(r, torch.zeros(N, WIDTH), 0, c, s, p, e),
    ),
    "re_routing": (
        lambda t, c, s: npu.npu_moe_re_routing(t, c, per_token_scales=s),
        (rand(7, 4), COUNTS, rand(7)),
        rerouted,
    ),
    "update_by_token": (
        lambda e, t: npu.npu_moe_update_expert(e, t, balance_mode=1),
        (EXPERTS, torch.tensor([[1 + e % 3, e, e + 10, e + 20] for e in range(E)], dtype=torch.int32)),
        lambda e, t: (
            torch.stack(
                [t[row.long(), 1 + i % t[row.long(), 0].long()] for i, row in enumerate(e)]
            ).to(torch.int32),
            torch.ones(N, 2, dtype=torch.bool),
        ),
    ),
}  # fmt: skip


def smoothed(x, experts, smooth):
    rows, places, order = routed(x, experts)
    rows = rows * torch.stack([smooth[int(experts.flatten()[f])] for f in order])
    scale = rows.abs().amax(-1) / 127
    stored = (rows / scale.unsqueeze(-1)).round().to(torch.int8)
    return stored, places, torch.zeros(0, dtype=torch.int64), scale


@pytest.mark.parametrize("name", ROWS)
def test_against_a_formula(name):
    op, args, formula = ROWS[name]
    agrees(op, args, formula)


# Routing in all its forms


def test_routing_of_a_range_of_experts():
    x, places, counts, _ = npu.npu_moe_init_routing_v2(
        X, EXPERTS, expert_num=E, active_expert_range=[2, 5], expert_tokens_num_flag=True,
        expert_tokens_num_type=1,
    )  # fmt: skip
    flat = EXPERTS.flatten()
    order = sorted((f for f in range(12) if 2 <= flat[f] < 5), key=lambda f: (int(flat[f]), f))
    assert places.tolist() == [order.index(f) if f in order else -1 for f in range(12)]
    assert counts.tolist() == [int((flat == e).sum()) for e in (2, 3, 4)]
    torch.testing.assert_close(x[: len(order)], X[[f // 2 for f in order]])
    assert not x[len(order) :].any()
    sources = npu.npu_moe_init_routing_v2(
        X, EXPERTS, expert_num=E, active_expert_range=[2, 5], row_idx_type=1
    )[1]
    assert sources.tolist() == [*order, *[-1] * (12 - len(order))]


def test_routing_with_pairs_of_expert_and_count():
    pairs = npu.npu_moe_init_routing_v2(
        X, EXPERTS, expert_num=E, expert_tokens_num_flag=True, expert_tokens_num_type=2
    )[2]
    counts = torch.bincount(EXPERTS.flatten(), minlength=E)
    expected = [[e, int(counts[e])] for e in range(E) if counts[e]]
    assert pairs.tolist() == expected + [[0, 0]] * (E - len(expected))


def test_routing_with_a_capacity():
    x, places, *_ = npu.npu_moe_init_routing_v2(X, EXPERTS, expert_num=E, drop_pad_mode=1, expert_capacity=2)
    assert x.shape == (E, 2, WIDTH)
    seen = dict.fromkeys(range(E), 0)
    expected = torch.zeros(E, 2, WIDTH)
    for f, expert in enumerate(EXPERTS.flatten().tolist()):
        place = seen[expert]
        seen[expert] += 1
        assert int(places[f]) == (expert * 2 + place if place < 2 else -1)
        if place < 2:
            expected[expert, place] = X[f // 2]
    torch.testing.assert_close(x, expected)
    back = npu.npu_moe_finalize_routing(x, None, None, None, torch.ones(N, 2), places, None, 3, 2)
    kept = (places.reshape(N, 2) >= 0).sum(1, keepdim=True)
    torch.testing.assert_close(back, X * kept)


def test_routing_of_the_first_rows_only():
    x, places, *_ = npu.npu_moe_init_routing_v2(X, EXPERTS, expert_num=E, active_num=5)
    rows, whole, _ = routed(X, EXPERTS)
    torch.testing.assert_close(x, rows[:5])
    torch.testing.assert_close(places, torch.where(whole < 5, whole, -1))


def test_routing_carries_scales():
    scale = rand(N)
    *_, expanded = npu.npu_moe_init_routing_v2(X, EXPERTS, scale=scale, expert_num=E)
    torch.testing.assert_close(expanded, routed(scale.unsqueeze(1), EXPERTS)[0].squeeze(1))


# quant_mode -> (dtype, columns of the stored row, shape of its scales, what one step may be off)
QUANTISED = {
    1: (torch.int8, WIDTH, (12,), 0.005),
    2: (torch.float8_e5m2, WIDTH, (12, 1, 2), 0.13),
    3: (torch.float8_e4m3fn, WIDTH, (12, 1, 2), 0.07),
    6: (torch.uint8, WIDTH, (0,), 0.13),
    8: (torch.uint8, WIDTH, (12,), 0.13),
    9: (torch.uint8, WIDTH // 2, (12, 1, 2), 0.5),
    13: (torch.uint8, WIDTH // 2, (12,), 0.08),
    16: (torch.float8_e5m2, WIDTH, (12, 1, 2), 0.13),
    17: (torch.float8_e4m3fn, WIDTH, (12, 1, 2), 0.07),
}


@pytest.mark.parametrize("mode", QUANTISED)
def test_quantised_routing(mode):
    dtype, columns, shape, _ = QUANTISED[mode]
    x, _, _, scale = npu.npu_moe_init_routing_v2(X, EXPERTS, expert_num=E, quant_mode=mode)
    assert (x.dtype, x.shape, scale.shape) == (dtype, (12, columns), shape)
    rows = routed(X, EXPERTS)[0]
    torch.testing.assert_close(
        numbers(x, scale, mode),
        rows,
        rtol=QUANTISED[mode][3],
        atol=QUANTISED[mode][3] * float(rows.abs().max()),
    )


def numbers(x, scale, mode):
    """What stored rows stand for; powers of two are bytes."""
    if mode in (1, 13):
        x = x if mode == 1 else torch.stack((x << 4, x & 0xF0), -1).flatten(-2).view(torch.int8) // 16
        return x * scale.unsqueeze(-1)
    if mode in (6, 8):
        plain = npu.npu_dtype_cast(x, 6, input_dtype=290)
        return plain if mode == 6 else plain * scale.unsqueeze(-1)
    factor = torch.exp2(scale.flatten(1).float() - 127).repeat_interleave(32, 1)
    if mode == 9:
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        return torch.cat((table, -table))[torch.stack((x & 15, x >> 4), -1).flatten(-2).long()] * factor
    return x.float() * factor


@pytest.mark.parametrize("mode", [11, 12])
def test_routing_quantised_in_blocks(mode):
    wide = rand(N, 256)
    x, _, _, scale = npu.npu_moe_init_routing_v2(wide, EXPERTS, expert_num=E, quant_mode=mode)
    assert (x.shape, scale.shape) == ((12, 256), (12, 2))
    rows = routed(wide, EXPERTS)[0]
    torch.testing.assert_close(x.float() * scale.repeat_interleave(128, 1), rows, rtol=0.13, atol=0.01)


def test_static_routing():
    scale, offset = torch.tensor([20.0]), torch.tensor([3.0])
    x, *_ = npu.npu_moe_init_routing_v2(X, EXPERTS, scale=scale, offset=offset, expert_num=E, quant_mode=0)
    expected = (routed(X, EXPERTS)[0] * 20 + 3).round().clamp(-128, 127).to(torch.int8)
    torch.testing.assert_close(x, expected)


def test_routing_needs_the_number_of_experts():
    with pytest.raises(ValueError, match="number of experts"):
        npu.npu_moe_init_routing_v2(X, EXPERTS)


@pytest.mark.parametrize("kind", [0, 1])
def test_re_routing_the_other_way(kind):
    tokens = rand(7, 4)
    _, scales, index, totals = npu.npu_moe_re_routing(tokens, COUNTS, expert_token_num_type=kind, idx_type=1)
    order = rerouted(tokens, COUNTS, tokens[:, 0])[2].tolist()
    assert index.tolist() == [order.index(row) for row in range(7)]
    assert totals.tolist() == ([3, 3, 1] if kind == 1 else [3, 6, 7])
    assert scales.shape == (0,)


def test_experts_by_rank_and_pruning():
    table = torch.tensor([[1, 4, 0, 0], [2, 5, 6, 0], [3, 7, 8, 9]], dtype=torch.int32)
    ids = torch.tensor([[0, 1], [1, 2], [2, 0]], dtype=torch.int32)
    scales = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    for rank, expected in ((0, [4, 5, 5, 7, 7, 4]), (3, [4, 6, 6, 8, 8, 4]), (5, [4, 6, 6, 9, 9, 4])):
        got, mask = npu.npu_moe_update_expert(
            ids, table, expert_scales=scales, pruning_threshold=torch.tensor([0.3, 0.3]),
            active_mask=torch.tensor([True, True, False]), local_rank_id=rank, world_size=6,
        )  # fmt: skip
        assert got.flatten().tolist() == expected
        assert mask.tolist() == [[True, False], [True, True], [False, False]]


# Merging of tokens

A, B = rand(2, 6, 4, dtype=torch.float32), rand(2, 6, 4, seed=1)
ORDER = torch.stack([torch.tensor([4, 1, 0, 5, 3, 2]), torch.tensor([2, 3, 0, 1, 5, 4])])
TARGET = torch.stack([torch.tensor([0, 2, 2, 5, 2, 1]), torch.tensor([3, 3, 0, 4, 1, 1])])


def merged(a, b, order, target):
    """Three of twelve tokens go into their targets."""
    kept = torch.stack([a[n, order[n, 3:]] for n in range(2)])
    sums, counts = torch.zeros(2, 8, 6, 4), torch.zeros(2, 8, 6)
    sums[:, 0], counts[:, 0] = b, 1
    for n in range(2):
        for t in order[n, :3].tolist():
            sums[n, 0, target[n, t]] += a[n, t]
            counts[n, 0, target[n, t]] += 1
    return kept, sums, counts


def unmerged(out, ori_a, ori_b, order, target):
    whole = torch.zeros(2, 12, 4)
    for n in range(2):
        for j in range(6):
            whole[n, ori_b[n, j]] = out[n, 3 + j]
        for t, token in enumerate(order[n].tolist()):
            whole[n, ori_a[n, token]] = out[n, 3 + int(target[n, token])] if t < 3 else out[n, t - 3]
    return whole


def test_tokens_merge_and_come_back():
    agrees(lambda a, b, o, t: inference.npu_tome_merge(a, b, o, t, 0.25), (A, B, ORDER, TARGET), merged)
    places = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(n)) for n in range(2)])
    agrees(
        lambda x, a, b, o, t: inference.npu_tome_unmerge(x, a, b, o, t, 0.25),
        (rand(2, 9, 4), places[:, :6].contiguous(), places[:, 6:].contiguous(), ORDER, TARGET.half()),
        unmerged,
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_routing_ops_compile_in_both_modes(mode, dynamic):
    """A layer of experts that are matrices."""

    def layer(x, logits, weights):
        scores, experts, _ = npu.npu_moe_gating_top_k(logits, 2, norm_type=1)
        rows, places, counts, _ = npu.npu_moe_init_routing_v2(
            x, experts, expert_num=8, expert_tokens_num_flag=True, expert_tokens_num_type=1
        )
        made = npu.npu_grouped_matmul([rows], [weights], group_list=counts, group_type=0, group_list_type=1)[
            0
        ]
        return npu.npu_moe_finalize_routing(made, None, None, None, scores, places, experts, 2, 2)

    compiles(layer, (X, LOGITS, rand(E, WIDTH, 16)), mode, dynamic, rtol=1e-5, atol=1e-5)
    scores, experts, _ = gate(LOGITS, 2, sigmoid=True)
    weights = rand(E, WIDTH, 16)
    expected = sum(
        scores[:, j, None] * torch.einsum("nw,nwo->no", X, weights[experts[:, j].long()]) for j in (0, 1)
    )
    torch.testing.assert_close(layer(X, LOGITS, weights), expected, rtol=1e-5, atol=1e-5)
