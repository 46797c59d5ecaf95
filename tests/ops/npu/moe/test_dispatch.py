"""Rows to experts of one process and back, written out token by token."""

from __future__ import annotations

import pytest
import torch

from tests.ops.compiled import agrees, ints, rand

npu = torch.ops.npu
N, K, E, WIDTH = 5, 2, 4, 8
X, SCALES = rand(N, WIDTH), rand(N, K).abs()
EXPERTS = ints(0, E, N, K, dtype=torch.int32)
ALONE = ("group", 1, 0, E)


def order(ids):
    """Entries that are sent, by (expert, token)."""
    flat = ids.flatten().tolist()
    return sorted((f for f in range(len(flat)) if flat[f] < E), key=lambda f: (flat[f], f))


def dispatch(x, ids, scales):
    """All seven results."""
    sent, flat = order(ids), ids.flatten().tolist()
    places = torch.tensor([flat[:f].count(flat[f]) for f in range(N * K)], dtype=torch.int32)
    counts = torch.tensor([flat.count(e) for e in range(E)])
    return (
        x[[f // K for f in sent]], torch.zeros(N * K), places, counts, counts.cumsum(0).to(torch.int32),
        torch.zeros(1, dtype=torch.int32), scales.flatten()[sent],
    )  # fmt: skip


def combine(rows, ids, scales):
    """Σ_j scale · row of entry (i, j)."""
    out = torch.zeros(N, rows.shape[1])
    for row, f in enumerate(order(ids)):
        out[f // K] += scales.flatten()[f] * rows[row]
    return out


def test_there_and_back():
    agrees(
        lambda x, e, s: npu.npu_moe_distribute_dispatch(x, e, *ALONE, expert_scales=s),
        (X, EXPERTS, SCALES),
        dispatch,
    )
    _, _, places, _, ends, *_ = dispatch(X, EXPERTS, SCALES)
    rows = rand(N * K, WIDTH)
    agrees(
        lambda r, e, p, c, s: npu.npu_moe_distribute_combine(r, e, p, c, s, *ALONE),
        (rows, EXPERTS, places, ends, SCALES),
        lambda r, e, p, c, s: combine(r, e, s),
    )
    shared = rand(N, WIDTH)
    got = npu.npu_moe_distribute_combine(rows, EXPERTS, places, ends, SCALES, *ALONE, shared_expert_x=shared)
    torch.testing.assert_close(got, combine(rows, EXPERTS, SCALES) + shared)


def test_tokens_that_are_not_active_are_not_sent():
    mask = torch.tensor([True, False, True, True, False])
    rows, _, places, counts, ends, *_ = npu.npu_moe_distribute_dispatch(
        X, EXPERTS, *ALONE, x_active_mask=mask, expert_token_nums_type=0
    )
    ids = torch.where(mask[:, None], EXPERTS, E)
    sent = order(ids)
    torch.testing.assert_close(rows[: len(sent)], X[[f // K for f in sent]])
    assert not rows[len(sent) :].any()
    assert counts.tolist() == ends.tolist() == [sum(v <= e for v in ids.flatten().tolist()) for e in range(E)]
    back = npu.npu_moe_distribute_combine(rows, EXPERTS, places, ends, SCALES, *ALONE, x_active_mask=mask)
    torch.testing.assert_close(back, X * SCALES.sum(1, keepdim=True) * mask[:, None])


@pytest.mark.parametrize("mode", [1, 2])
def test_quantised_rows(mode):
    smooth = rand(E, WIDTH).abs() * (30 if mode == 1 else 1)
    rows, scale, *_ = npu.npu_moe_distribute_dispatch(X, EXPERTS, *ALONE, scales=smooth, quant_mode=mode)
    sent = order(EXPERTS)
    expected = X[[f // K for f in sent]] * smooth[EXPERTS.flatten()[sent].long()]
    if mode == 2:
        torch.testing.assert_close(scale, expected.abs().amax(-1) / 127)
        expected = expected / scale.unsqueeze(1)
    torch.testing.assert_close(rows, expected.round().clamp(-128, 127).to(torch.int8))


def test_notes_and_special_experts():
    """Experts 4, 5 and 6 give 0, the token, and alpha1 · token + alpha2 · v."""
    ids = torch.tensor([[0, 4], [5, 1], [6, 2], [3, 3], [4, 6]], dtype=torch.int32)
    how = {"zero_expert_num": 1, "copy_expert_num": 1, "const_expert_num": 1}
    rows, _, notes, _, ends, *_ = npu.npu_moe_distribute_dispatch_v2(X, ids, *ALONE, **how)
    sent = order(ids)
    torch.testing.assert_close(rows[: len(sent)], X[[f // K for f in sent]])
    assert notes.shape == (128 * N * K,)
    assert notes.reshape(-1, 128)[: len(sent), :3].tolist() == [[0, f // K, f % K] for f in sent]
    made = rand(N * K, WIDTH, seed=1)
    alpha1, alpha2, v = torch.tensor([0.5]), torch.tensor([2.0]), rand(1, WIDTH)
    more = {
        "const_expert_alpha_1": alpha1,
        "const_expert_alpha_2": alpha2,
        "const_expert_v": v,
        "ori_x": X,
        **how,
    }
    expected = combine(made, ids, SCALES)
    for i, row in enumerate(ids.tolist()):
        for j, expert in enumerate(row):
            expected[i] += SCALES[i, j] * {5: X[i], 6: 0.5 * X[i] + 2 * v[0]}.get(expert, 0 * X[i])
    got = npu.npu_moe_distribute_combine_v2(made, ids, notes, ends, SCALES, *ALONE, **more)
    torch.testing.assert_close(got, expected)
    residual, gamma = rand(N, 1, WIDTH, seed=3), rand(WIDTH)
    y, rstd, x = npu.npu_moe_distribute_combine_add_rms_norm(
        made, ids, notes, ends, SCALES, residual, gamma, *ALONE, **more
    )
    torch.testing.assert_close(x, expected.unsqueeze(1) + residual)
    torch.testing.assert_close(rstd, (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt())
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (WIDTH,), gamma, 1e-6))


def test_second_version_converted():
    agrees(
        lambda x, e: npu.npu_moe_distribute_dispatch_v2(x, e, *ALONE)[0],
        (X, EXPERTS),
        lambda x, e: dispatch(x, e, SCALES)[0],
    )
    notes, ends = (npu.npu_moe_distribute_dispatch_v2(X, EXPERTS, *ALONE)[i] for i in (2, 4))
    agrees(
        lambda r, e, p, c, s: npu.npu_moe_distribute_combine_v2(r, e, p, c, s, *ALONE),
        (rand(N * K, WIDTH), EXPERTS, notes, ends, SCALES),
        lambda r, e, p, c, s: combine(r, e, s),
    )


def test_several_ranks_want_a_group():
    with pytest.raises(ValueError, match="no process group"):
        npu.npu_moe_distribute_dispatch(X, EXPERTS, "group", 2, 0, E)
