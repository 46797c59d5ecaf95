"""Attention to chosen keys in the npu library, and the indexer that chooses, written out key by key."""

from __future__ import annotations

import pytest
import torch

from tests.ops.compiled import agrees, ints, rand

npu = torch.ops.npu
SCALE = 0.3
# Two sequences of 3 queries and 8 keys, 4 heads over one key head, a latent width of 16 and 4 rotary columns.
Q, K = rand(2, 3, 4, 16), rand(2, 8, 1, 16)
Q_ROPE, K_ROPE = rand(2, 3, 4, 4), rand(2, 8, 1, 4)
INDICES = torch.tensor(
    [[[0, 3, -1], [1, 2, 0], [3, -1, 2]], [[2, -1, -1], [0, 1, 3], [1, 0, -1]]], dtype=torch.int32
).unsqueeze(2)
LENGTHS = [3, 2], [7, 5]
TABLE = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)


def paged(x):
    """[2, 8, …] as pages of four rows that the table lists."""
    pages = torch.empty(4, 4, *x.shape[2:], dtype=x.dtype)
    pages[TABLE.flatten().long()] = x.unflatten(1, (2, 4)).flatten(0, 1)
    return pages


def chosen(b, i, block, mode, lengths):
    """The keys that query i of sequence b sees."""
    listed = []
    for number in INDICES[b, i, 0].tolist():
        if number < 0:
            break
        listed += range(number * block, (number + 1) * block)
    last = lengths[1][b] - lengths[0][b] + i if mode == 3 else lengths[1][b] - 1
    return [j for j in sorted(listed) if j < lengths[1][b] and j <= last]


def written_out(q, k, v, block, mode, lengths, sink=None):
    """(result [B, S, N, D], max and sum [B, 1, S, N]) one query at a time, in double precision."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    top, total = torch.full((2, 1, 3, 4), -torch.inf), torch.zeros(2, 1, 3, 4)
    for b in range(2):
        for i in range(lengths[0][b]):
            seen = chosen(b, i, block, mode, lengths)
            if not seen:
                continue
            scores = SCALE * q[b, i].double() @ k[b, seen, 0].double().T
            top[b, 0, i] = scores.amax(-1)
            total[b, 0, i] = (scores - scores.amax(-1, keepdim=True)).exp().sum(-1)
            if sink is not None:
                scores = torch.cat((scores, sink.double().unsqueeze(1)), 1)
            out[b, i] = scores.softmax(-1)[:, : len(seen)] @ v[b, seen, 0].double()
    return out.float(), top, total


def tensors(lengths):
    return {
        "actual_seq_lengths_query": torch.tensor(lengths[0], dtype=torch.int32),
        "actual_seq_lengths_kv": torch.tensor(lengths[1], dtype=torch.int32),
    }


@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("pages", [False, True])
def test_sparse_attention(block, mode, pages):
    keys = {"layout_kv": "PA_BSND", "block_table": TABLE} if pages else {}
    stored = [paged(x) if pages else x for x in (K, K, K_ROPE)]
    got = npu.npu_sparse_flash_attention(
        Q, stored[0], stored[1], INDICES, SCALE, query_rope=Q_ROPE, key_rope=stored[2], sparse_mode=mode,
        sparse_block_size=block, attention_mode=2, return_softmax_lse=True, **keys, **tensors(LENGTHS),
    )  # fmt: skip
    q, k = torch.cat((Q, Q_ROPE), -1), torch.cat((K, K_ROPE), -1)
    for a, b in zip(got, written_out(q, k, K, block, mode, LENGTHS), strict=True):
        torch.testing.assert_close(a, b)


def test_packed_queries_over_pages():
    q = torch.cat((Q[0], Q[1, :2]))
    indices = torch.cat((INDICES[0], INDICES[1, :2]))
    ends = tensors(([3, 5], LENGTHS[1]))
    got = npu.npu_sparse_flash_attention(
        q, paged(K), paged(K), indices, SCALE, layout_query="TND", layout_kv="PA_BSND", block_table=TABLE,
        return_softmax_lse=True, **ends,
    )  # fmt: skip
    out, top, _ = written_out(Q, K, K, 1, 3, LENGTHS)
    torch.testing.assert_close(got[0], torch.cat((out[0], out[1, :2])))
    torch.testing.assert_close(got[1], torch.cat((top[0], top[1, :, :2]), 1))


def test_packed_keys():
    q, k = torch.cat((Q[0], Q[1, :2])), torch.cat((K[0, :7], K[1, :5]))
    indices = torch.cat((INDICES[0], INDICES[1, :2]))
    got = npu.npu_sparse_flash_attention(
        q, k, k, indices, SCALE, layout_query="TND", layout_kv="TND", **tensors(([3, 5], [7, 12]))
    )
    out, *_ = written_out(Q, K, K, 1, 3, LENGTHS)
    torch.testing.assert_close(got[0], torch.cat((out[0], out[1, :2])))
    assert [x.shape for x in got[1:]] == [(0,), (0,)]


def test_sinks_and_values_that_are_the_key():
    sink = rand(4)
    got = npu.npu_sparse_flash_attention(Q, K, None, INDICES, SCALE, sinks=sink, **tensors(LENGTHS))
    torch.testing.assert_close(got[0], written_out(Q, K, K, 1, 3, LENGTHS, sink)[0])


def test_converted():
    agrees(
        lambda q, k, i: npu.npu_sparse_flash_attention(q, k, k, i, SCALE)[0],
        (Q, K, INDICES),
        lambda q, k, i: written_out(q, k, k, 1, 3, ([3, 3], [8, 8]))[0],
    )


def quantized_rows(c, rope, tile):
    """Bytes of a cache row: int8 tiles, the rotary part, the scale of each tile; and what they stand for."""
    tiles = c.unflatten(-1, (-1, tile))
    scale = tiles.abs().amax(-1, keepdim=True) / 127
    stored = (tiles / scale).round().to(torch.int8)
    parts = stored.flatten(-2), rope.to(Q.dtype), scale.squeeze(-1)
    return torch.cat([x.contiguous().view(torch.int8) for x in parts], -1), (stored * scale).flatten(-2)


@pytest.mark.full
def test_quantised_cache():
    rows, numbers = quantized_rows(K, K_ROPE, 8)
    q = torch.cat((Q, Q_ROPE), -1)
    how = {"tile_size": 8, "rope_head_dim": 4, "attention_mode": 2}
    got = npu.npu_kv_quant_sparse_flash_attention(
        q, paged(rows), paged(rows), INDICES, SCALE, 2, 2, layout_kv="PA_BSND", block_table=TABLE, **how,
        **tensors(LENGTHS),
    )  # fmt: skip
    expected = written_out(q, torch.cat((numbers, K_ROPE), -1), numbers, 1, 3, LENGTHS)[0]
    torch.testing.assert_close(got, expected)
    agrees(
        lambda q, k, i: npu.npu_kv_quant_sparse_flash_attention(q, k, k, i, SCALE, 2, 2, **how),
        (q, rows, INDICES),
        lambda q, k, i: written_out(
            q, torch.cat((numbers, K_ROPE), -1), numbers, 1, 3, ([3, 3], [8, 8])
        )[0],
    )  # fmt: skip


# The indexer

WEIGHTS = rand(2, 3, 4)


def ranked(q, k, weights, count, lengths, mode=3):
    """(positions, scores) of the best keys, one query at a time."""
    found, values = torch.full((2, 3, 1, count), -1), torch.full((2, 3, 1, count), -torch.inf)
    for b in range(2):
        for i in range(lengths[0][b]):
            last = lengths[1][b] - lengths[0][b] + i if mode == 3 else lengths[1][b] - 1
            scores = [
                (float((weights[b, i] * torch.relu(q[b, i] @ k[b, j, 0])).sum()), -j)
                for j in range(min(last + 1, lengths[1][b]))
            ]
            for place, (score, j) in enumerate(sorted(scores, reverse=True)[:count]):
                found[b, i, 0, place], values[b, i, 0, place] = -j, score
    return found.to(torch.int32), values


@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("count", [3, 12])
def test_indexer(count, mode):
    lengths = {
        "actual_seq_lengths_query": torch.tensor(LENGTHS[0]),
        "actual_seq_lengths_key": torch.tensor(LENGTHS[1]),
    }
    expected = ranked(Q, K, WEIGHTS, count, LENGTHS, mode)
    how = {"sparse_count": count, "sparse_mode": mode, "return_value": True}
    for key, more in ((K, {}), (paged(K), {"layout_key": "PA_BSND", "block_table": TABLE})):
        found, values = npu.npu_lightning_indexer(Q, key, WEIGHTS, **how, **more, **lengths)
        assert torch.equal(found, expected[0])
        torch.testing.assert_close(values, expected[1])


def test_indexer_of_packed_sequences():
    expected, _ = ranked(Q, K, WEIGHTS, 4, LENGTHS)
    q, w, k = (
        torch.cat((Q[0], Q[1, :2])),
        torch.cat((WEIGHTS[0], WEIGHTS[1, :2])),
        torch.cat((K[0, :7], K[1, :5])),
    )
    found, values = npu.npu_lightning_indexer(
        q, k, w, actual_seq_lengths_query=torch.tensor([3, 5]), actual_seq_lengths_key=torch.tensor([7, 12]),
        layout_query="TND", layout_key="TND", sparse_count=4,
    )  # fmt: skip
    assert torch.equal(found, torch.cat((expected[0], expected[1, :2])))
    assert values.shape == (0,)


def test_indexer_converted():
    agrees(
        lambda q, k, w: npu.npu_lightning_indexer(q, k, w, sparse_count=4, return_value=True),
        (Q, K, WEIGHTS),
        lambda q, k, w: ranked(q, k, w, 4, ([3, 3], [8, 8])),
    )


def test_quantised_indexer():
    q, k = ints(-90, 90, 2, 3, 4, 16, dtype=torch.int8), ints(-90, 90, 2, 8, 1, 16, dtype=torch.int8)
    q_scale, k_scale = rand(2, 3, 4).abs() * 0.01, rand(2, 8, 1).abs() * 0.01
    agrees(
        lambda q, k, w, a, b: npu.npu_quant_lightning_indexer(q, k, w, a, b, 0, 0, sparse_count=5),
        (q, k, WEIGHTS, q_scale, k_scale),
        lambda q, k, w, a, b: ranked(q * a.unsqueeze(-1), k * b.unsqueeze(-1), w, 5, ([3, 3], [8, 8]))[0],
    )
