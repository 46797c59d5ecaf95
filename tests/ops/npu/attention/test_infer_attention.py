"""The attention family of the npu library, against torch's own attention in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings

from tests.ops.attention_cases import Case, Data, cases
from tests.ops.compiled import MODES, agrees, compiles, ints, rand

npu, air = torch.ops.npu, torch.ops.air
RANDOM = {"suppress_health_check": list(HealthCheck)}
# The names of the second version for those of the first.
SECOND = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
    **{f"{x}_antiquant_scale": f"dequant_scale_{x}" for x in ("key", "value")},
    **{f"{x}_antiquant_offset": f"dequant_offset_{x}" for x in ("key", "value")},
    **{f"{x}_antiquant_mode": f"{x}_quant_mode" for x in ("key", "value")},
}  # fmt: skip
LENGTHS = ("actual_seq_lengths", "actual_seq_lengths_kv", "actual_shared_prefix_len")


def call_version(data: Data, space, second: bool):
    """The op of a namespace and version; `air` has its lengths as tensors."""
    arguments = dict(data.arguments)
    if space is air:
        arguments |= {name: torch.tensor(arguments[name]) for name in LENGTHS if name in arguments}
    if not second:
        return space.npu_fused_infer_attention_score(data.query, data.key, data.value, **arguments)
    arguments = {SECOND.get(name, name): value for name, value in arguments.items()}
    if data.sink is not None:
        arguments["learnable_sink"] = data.sink
    return space.npu_fused_infer_attention_score_v2(data.query, data.key, data.value, **arguments)


def matches(case: Case) -> None:
    """Every version and namespace that can say the case gives what torch's attention gives."""
    data = Data(case)
    second = case.has_sink or case.seed % 2 == 1
    if second and (case.prefix or case.padding or str(case.scales).startswith("common")):
        second, data.sink = False, None
    data.sink = data.sink if second else None
    expected, lse = data.expected()
    for space in (npu, air):
        out, log = call_version(data, space, second)
        torch.testing.assert_close(out, expected, check_stride=False)
        if lse is None:
            assert (log.shape, log.dtype) == ((0,), torch.float32)
        else:
            torch.testing.assert_close(log, lse, check_stride=False)


@settings(max_examples=40, **RANDOM)
@given(cases())
def test_random_cases(case):
    matches(case)


@pytest.mark.full
@settings(max_examples=300, **RANDOM)
@given(cases())
def test_more_random_cases(case):
    matches(case)


# Conversion: eager, interpreted and lowered agree with a formula, with and without symbolic sizes

f32, bf16 = torch.float32, torch.bfloat16
Q, K, V = rand(2, 5, 32), rand(2, 7, 16), rand(2, 7, 16, seed=1)
TRIANGLE = torch.ones(2048, 2048).triu(1).bool()


def split(x, heads):
    """[batch, rows, heads · dim] as [batch, heads, rows, dim]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def plain(q, k, v, seen=None, scale=0.3, heads=(4, 2)):
    """Attention of BSH operands by torch, in double precision."""
    q, k, v = split(q, heads[0]).double(), split(k, heads[1]).double(), split(v, heads[1]).double()
    k, v = (x.repeat_interleave(heads[0] // heads[1], 1) for x in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    return out.transpose(1, 2).flatten(2)


def below(rows, columns, offset=0):
    return torch.arange(columns) <= torch.arange(rows)[:, None] + offset


def counted(columns, lengths):
    return torch.arange(columns) < torch.tensor(lengths)[:, None, None, None]


def fused(*args, **more):
    how = {"num_heads": 4, "num_key_value_heads": 2, "scale": 0.3} | more
    return npu.npu_fused_infer_attention_score(*args, **how)


PAGES, TABLE = rand(6, 4, 16), torch.tensor([[5, 2], [0, 3]], dtype=torch.int32)
INT8 = ints(-100, 100, 2, 7, 16, dtype=torch.int8)
SCALE = rand(2, 16).abs() * 0.02
ROWS = {
    "lengths": (
        lambda q, k, v: fused(q, k, v, actual_seq_lengths_kv=[7, 3], softmax_lse_flag=False)[0],
        (Q, K, V),
        lambda q, k, v: plain(q, k, v, counted(7, [7, 3])).float(),
    ),
    "causal_from_the_end": (
        lambda q, k, v, m: fused(q, k, v, atten_mask=m, sparse_mode=3)[0],
        (Q, K, V, TRIANGLE),
        lambda q, k, v, m: plain(q, k, v, below(5, 7, 2)).float(),
    ),
    "lengths_that_are_symbols": (
        lambda q, k, v: fused(q, k, v, actual_seq_lengths_kv=[k.shape[1], k.shape[1] - 3])[0],
        (Q, K, V),
        lambda q, k, v: plain(q, k, v, counted(7, [7, 4])).float(),
    ),
    "packed": (
        lambda q, k, v: fused(
            q,
            k,
            v,
            actual_seq_lengths=[2, 5],
            actual_seq_lengths_kv=[4, 7],
            input_layout="TND",
            sparse_mode=3,
        )[0],
        tuple(x[0].unflatten(-1, (-1, 8)) for x in (Q, K, V)),
        lambda q, k, v: (
            torch.cat(
                [
                    plain(*(x[part].flatten(1)[None] for x, part in zip((q, k, v), parts, strict=True)), seen)
                    for parts, seen in (
                        ((slice(0, 2), slice(0, 4), slice(0, 4)), below(2, 4, 2)),
                        ((slice(2, 5), slice(4, 7), slice(4, 7)), below(3, 3)),
                    )
                ],
                1,
            )[0]
            .unflatten(-1, (-1, 8))
            .float()
        ),
    ),
    "lengths_in_tensors": (
        lambda q, k, v, n: air.npu_fused_infer_attention_score(
            q, k, v, actual_seq_lengths_kv=n, num_heads=4, num_key_value_heads=2, scale=0.3
        )[0],
        (Q, K, V, torch.tensor([4, 6])),
        lambda q, k, v, n: plain(q, k, v, counted(7, [4, 6])).float(),
    ),
    "pages": (
        lambda q, k, v, t: fused(q, k, v, block_table=t, block_size=4, actual_seq_lengths_kv=[6, 8])[0],
        (Q, PAGES, rand(6, 4, 16, seed=3), TABLE),
        lambda q, k, v, t: plain(
            q, k[t.long()].flatten(1, 2), v[t.long()].flatten(1, 2), counted(8, [6, 8])
        ).float(),
    ),
    "quantised_cache": (
        lambda q, k, s: fused(q, k, k, antiquant_scale=s)[0],
        (Q, INT8, SCALE),
        lambda q, k, s: plain(q, k * s[0], k * s[1]).float(),
    ),
    "quantised_result": (
        lambda q, k, v, s: fused(q, k, v, quant_scale2=s)[0],
        (Q, K, V, torch.tensor([40.0])),
        lambda q, k, v, s: (plain(q, k, v) * s).round().clamp(-128, 127).to(torch.int8),
    ),
    "second_version_with_sink": (
        lambda q, k, v, s: npu.npu_fused_infer_attention_score_v2(
            q, k, v, learnable_sink=s, num_query_heads=4, num_key_value_heads=2, softmax_scale=0.3
        )[0],
        (Q, K, V, rand(4)),
        lambda q, k, v, s: sunk(q, k, v, s).float(),
    ),
    "prompt": (
        lambda q, k, v, m: npu.npu_prompt_flash_attention(
            q, k, v, atten_mask=m, num_heads=4, num_key_value_heads=2, scale_value=0.3, sparse_mode=1
        ),
        (Q, K, V, ~below(5, 7)),
        lambda q, k, v, m: plain(q, k, v, below(5, 7)).float(),
    ),
    "step": (
        lambda q, k, v: npu.npu_incre_flash_attention(
            q, k, v, num_heads=4, num_key_value_heads=2, scale_value=0.3, actual_seq_lengths=[5, 2]
        ),
        (Q[:, :1], K, V),
        lambda q, k, v: plain(q, k, v, counted(7, [5, 2])).float(),
    ),
    "step_masked_and_quantised": (
        lambda q, k, m, s: npu.npu_incre_flash_attention(
            q, k, k, num_heads=4, num_key_value_heads=2, scale_value=0.3, atten_mask=m, antiquant_scale=s
        ),
        (Q[:, :1], INT8, rand(2, 7) > 0.5, SCALE),
        lambda q, k, m, s: plain(q, k * s[0], k * s[1], ~m[:, None, None, :]).float(),
    ),
    "merged": (
        lambda a, b, x, y: npu.npu_attention_update([a, b], [x, y], 1),
        (rand(6), rand(6, seed=1), rand(6, 8), rand(6, 8, seed=1)),
        lambda a, b, x, y: (
            (x * a.exp()[:, None] + y * b.exp()[:, None]) / (a.exp() + b.exp())[:, None],
            (a.exp() + b.exp()).log(),
        ),
    ),
}


def sunk(q, k, v, sink):
    """One more key with a given score and no value."""
    scores = 0.3 * split(q, 4).double() @ split(k, 2).repeat_interleave(2, 1).double().mT
    sink = sink.double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    p = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    return (p @ split(v, 2).repeat_interleave(2, 1).double()).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("name", ROWS)
def test_against_a_formula(name):
    op, args, formula = ROWS[name]
    agrees(op, args, formula)


def test_half_precision_keeps_its_statistics_in_float32():
    parts = [x.to(bf16) for x in (Q, K, V)]
    out, lse = fused(*parts, softmax_lse_flag=True)
    assert (out.dtype, lse.dtype, lse.shape) == (bf16, f32, (2, 4, 5, 1))
    # Probabilities are rounded to bfloat16, too.
    torch.testing.assert_close(out.double(), plain(*parts), rtol=2**-7, atol=2**-8)
    # Products of bfloat16 are summed in another order on some processors; rounded to bfloat16, sums would be
    # 2**-8 off.
    wanted = fused(*(x.float() for x in parts), softmax_lse_flag=True)[1]
    torch.testing.assert_close(lse, wanted, rtol=2**-13, atol=2**-13)


def test_quantised_operands():
    """Products of int8 with their scales, probabilities that are int8 on the way."""
    q, k, v = (ints(-50, 50, 2, 2, rows, 8, dtype=torch.int8, seed=rows) for rows in (3, 5, 6))
    v = v[:, :, :5]
    scale1, scale2 = torch.tensor(0.002), torch.tensor(0.01)
    packed = [scale.view(torch.int32).to(torch.int64).reshape(1) for scale in (scale1, scale2)]
    out, _ = npu.npu_fused_infer_attention_score(
        q, k, v, dequant_scale1=packed[0], quant_scale1=torch.tensor([127.0]), dequant_scale2=packed[1],
        num_heads=2, input_layout="BNSD", scale=0.5,
    )  # fmt: skip
    p = (0.5 * 0.002 * (q.double() @ k.double().mT)).softmax(-1)
    expected = (p * 127).round() @ v.double() * 0.01
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, expected.half())


def test_int8_query_with_a_scale_per_token_and_head_shared_with_its_rotary_part():
    q, k = (ints(-50, 50, *shape, dtype=torch.int8) for shape in ((7, 4, 8), (6, 1, 8)))
    q_rope, k_rope = rand(7, 4, 4, dtype=bf16), rand(6, 1, 4, dtype=bf16)
    scale, key_scale = rand(7, 4).abs() * 0.05, torch.tensor([0.02])
    out, _ = npu.npu_fused_infer_attention_score_v2(
        q, k, k, query_rope=q_rope, key_rope=k_rope, dequant_scale_query=scale, dequant_scale_key=key_scale,
        dequant_scale_value=key_scale, num_query_heads=4, num_key_value_heads=1, input_layout="TND",
        actual_seq_qlen=[7], actual_seq_kvlen=[6], query_quant_mode=3,
    )  # fmt: skip
    whole = torch.cat((q.double(), q_rope.double()), -1) * scale.unsqueeze(-1)
    keys = torch.cat((k.double(), k_rope.double()), -1)[:, 0] * 0.02
    expected = torch.einsum("tns,sd->tnd", (whole @ keys.T).softmax(-1), k[:, 0].double() * 0.02)
    assert out.dtype == bf16
    torch.testing.assert_close(out, expected.to(bf16))


def test_types_that_only_a_code_tells():
    """fp4 keys travel as two values per byte with a power of two for each group of columns."""
    codes = ints(0, 16, 2, 7, 2, 8, dtype=torch.uint8)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat((table, -table))[codes.long()]
    stored = codes[..., 0::2] | (codes[..., 1::2] << 4)
    scale = ints(125, 128, 1, 2, 2, 7, 2, dtype=torch.uint8)
    factor = torch.exp2(scale[0].float() - 127).repeat_interleave(4, -1).transpose(1, 2)
    keys = (numbers * factor).flatten(2)
    q = rand(2, 5, 4, 8)
    out, _ = npu.npu_fused_infer_attention_score_v2(
        q, stored, stored, dequant_scale_key=scale, dequant_scale_value=scale, key_quant_mode=6,
        value_quant_mode=6, num_query_heads=4, num_key_value_heads=2, softmax_scale=0.3, input_layout="BSND",
        key_dtype=296, value_dtype=296,
    )  # fmt: skip
    torch.testing.assert_close(out.flatten(2), plain(q.flatten(2), keys, keys).float())


@pytest.mark.parametrize(
    ("query", "value", "more", "what"),
    [
        (rand(2, 5, 32), K, {"input_layout": "SBND"}, "no layout"),
        (rand(2, 5, 4, 8), K, {}, "must have 3 dims"),
        (rand(2, 5, 32), rand(2, 7, 2, 8), {}, "have 3 dims"),
        (rand(2, 5, 32), rand(2, 7), {"block_table": TABLE}, "3 or 4 or 5 dims"),
        (rand(2, 5, 32), K, {"num_heads": 0}, "at least one head"),
    ],
)
def test_what_no_layout_allows(query, value, more, what):
    with pytest.raises(ValueError, match=what):
        fused(query, value, value, **more)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_infer_attention_compiles_in_both_modes(mode, dynamic):
    def step(q, k, v, table, lengths):
        out, lse = air.npu_fused_infer_attention_score(
            q, k, v, block_table=table, block_size=4, actual_seq_lengths_kv=lengths, num_heads=4,
            num_key_value_heads=2, scale=0.3, softmax_lse_flag=True,
        )  # fmt: skip
        return out * 2, lse

    args = (Q[:, :1], PAGES, rand(6, 4, 16, seed=3), TABLE, torch.tensor([6, 8]))
    compiles(step, args, mode, dynamic)


@pytest.mark.parametrize("mode", range(5))
@pytest.mark.parametrize("rows", [(2, 0), (0, 2), (1, 1), (0, 0), (2, 0, 1)])
def test_packed_queries_that_are_no_more_than_their_sequences(rows, mode):
    """Every query then gets the keys of its own sequence, which may have several queries, or none."""
    case = Case(
        layout="TND", rows=rows, columns=(5, 7, 3)[: len(rows)], kv_heads=1, group=2, dim=8, value_dim=8,
        mode=mode, band=(1, 1), has_mask=False, has_shift=False, pages=4, scales=None, has_rope=True,
        has_lse=True, has_sink=False, prefix=0, padding=None, seed=2,
    )  # fmt: skip
    matches(case)
