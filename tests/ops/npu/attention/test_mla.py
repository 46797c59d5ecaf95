"""What comes before latent attention in the npu library, written out in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.compiled import MODES, agrees, compiles, halved, ints, rand
from tests.support.memory import copies
from tests.support.slow import slow

npu = torch.ops.npu
# Tokens, width, latent query, heads, head dim, latent key, rotary columns.
T, WIDTH, LATENT, HEADS, DIM, KEY, ROPE = 6, 64, 32, 2, 8, 32, 16
W_DQ, W_UQ = rand(WIDTH, LATENT) / 8, rand(LATENT, HEADS * (DIM + ROPE)) / 6
W_UK, W_DKV = rand(HEADS, DIM, KEY) / 3, rand(WIDTH, KEY + ROPE) / 8
GAMMA_Q, GAMMA_K = rand(LATENT).abs(), rand(KEY).abs()
ANGLES = rand(T, ROPE // 2).repeat(1, 2)
SIN, COS = ANGLES.sin(), ANGLES.cos()
X = rand(T, WIDTH)
SLOTS = torch.tensor([5, 0, 9, -1, 2, 11])
CACHES = rand(3, 4, 1, KEY), rand(3, 4, 1, ROPE)
WEIGHTS = (W_DQ, W_UQ, W_UK, W_DKV, GAMMA_Q, GAMMA_K, SIN, COS)


def turned(x, sin, cos):
    """Even columns before odd ones, then the half form."""
    x = torch.cat((x[..., 0::2], x[..., 1::2]), -1)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def norm(x, gamma, eps=1e-5):
    return F.rms_norm(x, gamma.shape, gamma.double(), eps)


def latents(x, w_dq, w_uq, w_uk, w_dkv, gamma_q, gamma_k, sin, cos, between=lambda cq: cq, factors=(1, 1)):
    """(query, query_rope, latent key, rotary key, latent query) of [T, …] tokens, in double precision."""
    x, w_dq, w_uq, w_uk, w_dkv, sin, cos = (p.double() for p in (x, w_dq, w_uq, w_uk, w_dkv, sin, cos))
    cq = norm(x @ w_dq, gamma_q) * factors[0]
    up = (between(cq) @ w_uq).unflatten(-1, (HEADS, -1))
    query = torch.einsum("tnd,ndk->tnk", up[..., :DIM], w_uk)
    down = x @ w_dkv
    c, rope = norm(down[:, :KEY], gamma_k) * factors[1], turned(down[:, KEY:], sin, cos)
    return query, turned(up[..., DIM:], sin.unsqueeze(1), cos.unsqueeze(1)), c, rope, cq


def stored(cache, rows, slots=SLOTS):
    """A cache [blocks, rows, 1, D] with rows at their slots."""
    flat = cache.clone().flatten(0, 1)
    for row, slot in zip(rows, slots.tolist(), strict=True):
        if slot >= 0:
            flat[slot, 0] = row.to(cache.dtype)
    return flat.reshape(cache.shape)


def first_version(x, *rest):
    weights, slots, caches = rest[:8], rest[8], rest[9:]
    query, rope, c, r, _ = latents(x, *weights)
    return query.float(), rope.float(), stored(caches[0], c, slots), stored(caches[1], r, slots)


def test_against_a_formula():
    functional = torch.ops.torchair.npu_mla_prolog_functional
    args = (X, *WEIGHTS, SLOTS, *CACHES)
    agrees(lambda *a: functional(*a), args, first_version, rtol=1e-5, atol=1e-5)


def test_caches_are_written():
    caches = copies(CACHES)
    query, rope, *returned = npu.npu_mla_prolog(X, *WEIGHTS, SLOTS, *caches)
    expected = first_version(X, *WEIGHTS, SLOTS, *CACHES)
    for a, b in zip((query, rope, *caches, *returned), (*expected, *expected[2:]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_batches_of_tokens():
    shape = (2, 3)
    caches = copies(CACHES)
    weights = (*WEIGHTS[:6], *(x.unflatten(0, shape) for x in (SIN, COS)))
    query, rope, *_ = npu.npu_mla_prolog(X.unflatten(0, shape), *weights, SLOTS.reshape(shape), *caches)
    expected = first_version(X, *WEIGHTS, SLOTS, *CACHES)
    torch.testing.assert_close(query, expected[0].unflatten(0, shape), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rope, expected[1].unflatten(0, shape), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(caches[0], expected[2], rtol=1e-5, atol=1e-5)


def test_pages_in_pieces():
    """A page holds [pieces, rows, 16] instead of [rows, columns]."""

    def pieces(cache):
        return cache.reshape(3, 4, -1, 16).transpose(1, 2).reshape(cache.shape).contiguous()

    caches = [pieces(x) for x in CACHES]
    npu.npu_mla_prolog(X, *WEIGHTS, SLOTS, *caches, cache_mode="PA_NZ")
    expected = first_version(X, *WEIGHTS, SLOTS, *CACHES)
    for cache, plain in zip(caches, expected[2:], strict=True):
        torch.testing.assert_close(cache, pieces(plain), rtol=1e-5, atol=1e-5)


def per_row(x, top=127):
    scale = x.abs().amax(-1, keepdim=True) / top
    return (x / scale).round(), scale


def small(weight):
    """int8 with a scale for each column."""
    scale = weight.abs().amax(0, keepdim=True) / 127
    return (weight / scale).round().to(torch.int8), scale.float()


def test_all_in_int8():
    """x, weights and cache are int8, and so is the query; its rotary part shares its scale."""
    (x, x_scale), smooth = per_row(X), rand(1, LATENT).abs()
    parts = [small(weight) for weight in (W_DQ, W_UQ, W_DKV)]
    caches = [CACHES[0].mul(9).to(torch.int8), CACHES[1].clone()]
    cache_scale = torch.tensor([30.0])
    query, rope, *_, scale = npu.npu_mla_prolog_v2(
        x.to(torch.int8), parts[0][0], parts[1][0], W_UK, parts[2][0], *WEIGHTS[4:], SLOTS, *caches,
        dequant_scale_x=x_scale, dequant_scale_w_dq=parts[0][1], dequant_scale_w_uq_qr=parts[1][1],
        dequant_scale_w_dkv_kr=parts[2][1], quant_scale_ckv=cache_scale, smooth_scales_cq=smooth,
    )  # fmt: skip

    def between(cq):
        numbers, row_scale = per_row(cq * smooth)
        return numbers * row_scale

    w_dq, w_uq, w_dkv = (weight.double() * factor for weight, factor in parts)
    q, r, c, k, _ = latents(x * x_scale, w_dq, w_uq, W_UK, w_dkv, *WEIGHTS[4:], between)
    assert (query.dtype, scale.shape) == (torch.int8, (T, HEADS, 1))
    torch.testing.assert_close(scale.double(), q.abs().amax(-1, keepdim=True) / 127, rtol=1e-4, atol=1e-6)
    off = (query.double() - q / scale.double()).abs()
    assert off.max() <= 0.51
    torch.testing.assert_close(rope.double() * scale / 30, r, rtol=1e-4, atol=1e-5)
    expected = stored(CACHES[0].mul(9).to(torch.int8), (c * 30).round().clamp(-128, 127))
    assert (caches[0].int() - expected.int()).abs().max() <= 1
    torch.testing.assert_close(caches[1], stored(CACHES[1], k), rtol=1e-4, atol=1e-5)


def test_the_second_version_without_quantisation_has_no_scale():
    *_, scale = npu.npu_mla_prolog_v2(X, *WEIGHTS, SLOTS, *copies(CACHES))
    assert scale.shape == (1,)


def test_the_third_version():
    """Factors, the latent query on demand, and the same results where caches are copied."""
    how = {"cache_index": SLOTS, "query_norm_flag": True, "qc_qr_scale": 0.5, "kc_scale": 2.0}
    caches = copies(CACHES)
    query, rope, _, latent, latent_scale = npu.npu_mla_prolog_v3(X, *WEIGHTS, *caches, **how)
    q, r, c, k, cq = latents(X, *WEIGHTS, factors=(0.5, 2))
    expected = [q, r, cq, stored(CACHES[0], c), stored(CACHES[1], k)]
    for a, b in zip((query, rope, latent, *caches), expected, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=1e-5)
    assert latent_scale.shape == (0,)
    functional = npu.npu_mla_prolog_v3_functional(X, *WEIGHTS, *CACHES, **how)
    torch.testing.assert_close(functional[5:], tuple(caches))
    none = npu.npu_mla_prolog_v3_functional(X, *WEIGHTS, *CACHES, cache_index=SLOTS)
    assert none[3].shape == none[4].shape == (0,)


def test_a_cache_in_tiles():
    """A row holds int8 tiles, the rotary part and the scale of each tile, as sparse attention reads them."""
    width = KEY + 4 * ROPE + 4 * KEY // 16
    caches = [torch.zeros(3, 4, 1, width, dtype=torch.int8), CACHES[1].clone()]
    npu.npu_mla_prolog_v3(
        X, *WEIGHTS, *caches, cache_index=SLOTS, kv_cache_quant_mode=3, ckvkr_repo_mode=1,
        quant_scale_repo_mode=1, tile_size=16, k_nope_clip_alpha=torch.tensor([0.5]),
    )  # fmt: skip
    _, _, c, k, _ = latents(X, *WEIGHTS)
    row = caches[0].flatten(0, 1)[5, 0]
    scale = row[KEY + 4 * ROPE :].clone().view(torch.float32)
    peak = c[0].unflatten(-1, (-1, 16)).abs().amax(-1) * 0.5
    torch.testing.assert_close(scale.double(), peak / 127, rtol=1e-5, atol=1e-7)
    numbers = row[:KEY].double() * scale.repeat_interleave(16)
    limit = peak.repeat_interleave(16)
    assert (numbers - c[0].clamp(-limit, limit)).abs().max() <= scale.max() * 0.51
    rope = row[KEY : KEY + 4 * ROPE].clone().view(torch.float32)
    torch.testing.assert_close(rope.double(), k[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(caches[1], CACHES[1])


def test_microscaled_weights():
    """fp8 with a power of two for every 32 values, of x and of the weights."""

    def mx(x, dim):
        blocks = x.movedim(dim, -1).unflatten(-1, (-1, 32))
        power = torch.floor(torch.log2(blocks.abs().amax(-1))) - 8
        data = (blocks / torch.exp2(power).unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn)
        numbers = (data.double() * torch.exp2(power).unsqueeze(-1)).flatten(-2).movedim(-1, dim)
        return data.flatten(-2).movedim(-1, dim), (power + 127).to(torch.uint8), numbers

    parts = [mx(x, dim) for x, dim in ((X, -1), (W_DQ, 0), (W_UQ, 0), (W_DKV, 0))]
    query, _, _, latent, latent_scale, *_ = npu.npu_mla_prolog_v3_functional(
        parts[0][0], parts[1][0], parts[2][0], W_UK, parts[3][0], *WEIGHTS[4:], *CACHES, cache_index=SLOTS,
        dequant_scale_x=parts[0][1], dequant_scale_w_dq=parts[1][1], dequant_scale_w_uq_qr=parts[2][1],
        dequant_scale_w_dkv_kr=parts[3][1], weight_quant_mode=3, query_norm_flag=True,
    )  # fmt: skip
    numbers = [part[2] for part in parts]
    q, *_ = latents(
        numbers[0], numbers[1], numbers[2], W_UK, numbers[3], *WEIGHTS[4:], lambda cq: mx(cq, -1)[2]
    )
    assert (latent.dtype, latent_scale.shape) == (torch.float8_e4m3fn, (T, LATENT // 32))
    torch.testing.assert_close(query.double(), q, rtol=1e-3, atol=1e-3)


def test_pages_named_by_their_first_slot():
    """Sequences of 5 and 1 tokens: two pages and one."""
    caches = copies(CACHES)
    npu.npu_mla_prolog_v3(
        X, *WEIGHTS, *caches, cache_index=torch.tensor([8, 0, 4]), actual_seq_len=torch.tensor([5, 6]),
        cache_mode="PA_BLK_BSND",
    )  # fmt: skip
    _, _, c, _, _ = latents(X, *WEIGHTS)
    slots = torch.tensor([8, 9, 10, 11, 0, 4])
    torch.testing.assert_close(caches[0], stored(CACHES[0], c, slots), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "dynamic"), [(MODES[0], False), slow(MODES[0], True), (MODES[1], False), slow(MODES[1], True)]
)
def test_mla_ops_compile_in_both_modes(mode, dynamic):
    def step(x, slots, kv_cache, kr_cache):
        query, rope, *_ = npu.npu_mla_prolog_v3(x, *weights, kv_cache, kr_cache, cache_index=slots)
        return query * 2, rope

    weights = halved(WEIGHTS, torch.bfloat16)
    args = halved((X, SLOTS, *CACHES), torch.bfloat16)
    compiles(step, args, mode, dynamic, rtol=1e-5, atol=1e-5)


def test_what_is_written_is_what_int8_attention_reads():
    """Query and cache of the second version give, through attention, what plain numbers give."""
    x = ints(-90, 90, T, WIDTH, dtype=torch.int8)
    parts = [small(weight) for weight in (W_DQ, W_UQ, W_DKV)]
    slots = torch.arange(T)
    caches = [torch.zeros(3, 4, 1, KEY, dtype=torch.int8), torch.zeros(3, 4, 1, ROPE)]
    x_scale, cache_scale = torch.full((T, 1), 0.01), torch.tensor([20.0])
    query, rope, *_, scale = npu.npu_mla_prolog_v2(
        x, parts[0][0], parts[1][0], W_UK, parts[2][0], *WEIGHTS[4:], slots, *caches, dequant_scale_x=x_scale,
        dequant_scale_w_dq=parts[0][1], dequant_scale_w_uq_qr=parts[1][1], dequant_scale_w_dkv_kr=parts[2][1],
        quant_scale_ckv=cache_scale,
    )  # fmt: skip
    out, _ = npu.npu_fused_infer_attention_score_v2(
        query, caches[0].flatten(2), caches[0].flatten(2), query_rope=rope, key_rope=caches[1].flatten(2),
        dequant_scale_query=scale, dequant_scale_key=1 / cache_scale, dequant_scale_value=1 / cache_scale,
        block_table=torch.tensor([[0, 1]], dtype=torch.int32), block_size=4, num_query_heads=HEADS,
        num_key_value_heads=1, input_layout="TND", actual_seq_qlen=[T], actual_seq_kvlen=[T],
        query_quant_mode=3, softmax_scale=0.2,
    )  # fmt: skip
    w_dq, w_uq, w_dkv = (weight.double() * factor for weight, factor in parts)
    q, r, c, k, _ = latents(x * 0.01, w_dq, w_uq, W_UK, w_dkv, *WEIGHTS[4:])
    scores = torch.cat((q, r), -1) @ torch.cat((c, k), -1).T * 0.2
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ c, rtol=0.05, atol=0.05)
