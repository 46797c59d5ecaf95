"""Cache writes of the npu library, against loops over tokens."""

from __future__ import annotations

import contextlib

import pytest
import torch

from tests.ops.compiled import MODES, agrees, compiles, halved, ints, rand
from tests.support.slow import slow
from torchair.core.errors import DegradedWarning

npu, air = torch.ops.npu, torch.ops.torchair
i8, i32 = torch.int8, torch.int32


def looped(var, indices, updates, axis):
    made = var.clone()
    for number in range(updates.shape[0]):
        row, start = indices[number].tolist() if indices.ndim == 2 else (number, indices[number].item())
        length = updates.shape[axis]
        made[row].narrow(axis if axis < 0 else axis - 1, start, length).copy_(updates[number])
    return made


def saturated(x):
    return x.round().clamp(-128, 127).to(i8)


def turned(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def interleave_half(x, cos, sin):
    ordered = torch.cat((x[..., ::2], x[..., 1::2]), -1)
    return ordered * cos + turned(ordered) * sin


def rms(x, gamma, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gamma


CACHE = rand(3, 2, 8, 4)
SCATTERS = {
    "rows": (CACHE, torch.tensor([5, 0, 3]), rand(3, 2, 2, 4), -2),
    "pairs": (CACHE, torch.tensor([[2, 5], [0, 1]]), rand(2, 2, 3, 4), 2),
    "first_dim": (rand(3, 8, 4), torch.tensor([1, 2, 3], dtype=i32), rand(3, 1, 4), 1),
    "last_dim": (CACHE, torch.tensor([1, 2, 0]), rand(3, 2, 8, 2), -1),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatter_update(name):
    var, indices, updates, axis = SCATTERS[name]
    agrees(
        lambda var, indices, updates: npu.scatter_update(var, indices, updates, axis),
        (var, indices, updates),
        lambda var, indices, updates: looped(var, indices, updates, axis),
    )


@pytest.mark.parametrize("name", SCATTERS)
def test_scatter_update_in_place(name):
    var, indices, updates, axis = SCATTERS[name]
    here = var.clone()
    assert npu.scatter_update_(here, indices, updates, axis).data_ptr() == here.data_ptr()
    assert torch.equal(here, looped(var, indices, updates, axis))


def test_quant_scatter():
    var, scale, zero = ints(-9, 9, 3, 2, 8, 4, dtype=i8), rand(4).abs() + 0.1, rand(4)
    args = (var, torch.tensor([5, 0, 3]), rand(3, 2, 2, 4) * 9, scale, zero)
    agrees(
        lambda *args: npu.npu_quant_scatter(*args),
        args,
        lambda var, index, updates, scale, zero: looped(var, index, saturated(updates / scale + zero), -2),
    )
    here = var.clone()
    npu.npu_quant_scatter_(here, *args[1:])
    assert torch.equal(here, npu.npu_quant_scatter(*args))


def test_scatter_nd_update():
    def formula(var, indices, updates):
        made = var.clone()
        for index, update in zip(indices, updates, strict=True):
            made[tuple(index)] = update
        return made

    args = (rand(4, 5, 6), torch.tensor([[0, 1], [3, 4], [2, 2]]), rand(3, 6))
    agrees(lambda *args: npu.npu_scatter_nd_update(*args), args, formula)
    here = args[0].clone()
    npu.npu_scatter_nd_update_(here, *args[1:])
    assert torch.equal(here, formula(*args))


def test_scatter_list():
    def formula(a, b, c, index, updates, mask):
        made = [a.clone(), b.clone(), c.clone()]
        for number in range(3):
            if mask[number]:
                made[number][:, index[number] : index[number] + 2] = updates[number]
        return made

    agrees(
        lambda a, b, c, index, updates, mask: npu.npu_scatter_list([a, b, c], index, updates, mask),
        (
            rand(2, 8, 4),
            rand(2, 8, 4, seed=1),
            rand(2, 8, 4, seed=2),
            torch.tensor([1, 6, 0]),
            rand(3, 2, 2, 4),
            torch.tensor([1, 0, 1], dtype=torch.uint8),
        ),
        formula,
    )


def test_gather_backward():
    agrees(
        lambda grad, index: npu.npu_gather_backward(grad, [4, 5], 1, index, False),
        (rand(4, 3), ints(0, 5, 4, 3)),
        lambda grad, index: torch.zeros(4, 5).scatter_add(1, index, grad),
    )


def test_prefetch_changes_nothing():
    x = rand(4, 4)

    def fn(x):
        y = x * 2
        npu.npu_prefetch(x, y, 1024)
        return y + 1

    assert torch.equal(fn(x), x * 2 + 1)
    compiles(fn, (x,), "max-autotune", False)
    with pytest.raises(ValueError, match="max_size > 0"):
        npu.npu_prefetch(x, x, 0)
    with pytest.raises(ValueError, match="dependency"):
        npu.npu_prefetch(x, None, 5)


# Pages


def paged(cache, slots, tokens, put):
    made = cache.clone()
    for slot, token in zip(slots.flatten().tolist(), tokens, strict=True):
        if slot >= 0:
            put(made, slot // cache.shape[1], slot % cache.shape[1], token)
    return made


def put_plain(cache, block, row, token):
    cache[block, row] = token


SLOTS = {
    "all": torch.tensor([3, 9, 0, 11, 6], dtype=i32),
    "some": torch.tensor([-1, 9, -1, 0, 4]),
    "none": torch.tensor([-1, -1, -1, -1, -1]),
}


@pytest.mark.parametrize("name", SLOTS)
def test_paged_cache_write_equals_loop(name):
    agrees(
        lambda k, v, kc, vc, slots: npu.npu_scatter_pa_kv_cache_functional(
            k, v, kc, vc, slots, cache_mode="Norm"
        ),
        (rand(5, 2, 8), rand(5, 2, 6), rand(3, 4, 2, 8), rand(3, 4, 2, 6), SLOTS[name]),
        lambda k, v, kc, vc, slots: (paged(kc, slots, k, put_plain), paged(vc, slots, v, put_plain)),
    )


@pytest.mark.parametrize("name", SLOTS)
def test_pages_in_pieces(name):
    def formula(k, v, kc, vc, slots):
        made = kc.clone(), vc.clone()
        for cache, data in zip(made, (k, v), strict=True):
            for slot, token in zip(slots.tolist(), data, strict=True):
                if slot >= 0:
                    cache[slot // 4, :, slot % 4] = token.view(-1, cache.shape[-1])
        return made

    agrees(
        lambda *args: npu.npu_scatter_pa_kv_cache_functional(*args),
        (rand(5, 2, 8), rand(5, 2, 16), rand(3, 2, 4, 8), rand(3, 4, 4, 8), SLOTS[name]),
        formula,
    )


@pytest.mark.parametrize("mode", MODES)
def test_pages_in_place(mode):
    """The caches themselves are written, and nothing is returned."""
    key, value, slots = rand(5, 2, 8), rand(5, 2, 16), torch.tensor([0, 5, -1, 11, 2])
    caches = rand(3, 2, 4, 8), rand(3, 4, 4, 8)
    want = npu.npu_scatter_pa_kv_cache_functional(key, value, *caches, slots)

    def write(k, v, kc, vc, slots):
        npu.npu_scatter_pa_kv_cache(k, v, kc, vc, slots)
        return kc + 1

    got = [cache.clone() for cache in caches]
    assert npu.npu_scatter_pa_kv_cache(key, value, *got, slots) is None
    torch.testing.assert_close(tuple(got), want)
    compiles(write, (key, value, *caches, slots), mode, False)


def test_compressed_spans():
    key, value, cache = rand(2, 6, 2, 4), rand(2, 6, 2, 4, seed=1), torch.zeros(8, 4, 1, 4)
    slots = torch.tensor([[0, 8], [16, 24]])
    lens, offsets, seq = torch.tensor([2, 1, 0, 3]), torch.tensor([1, 4, 0, 2]), torch.tensor([6, 5])

    def formula(data):
        made = cache.clone().view(32, 4)
        for b in range(2):
            for h in range(2):
                length, offset = lens[2 * b + h].item(), offsets[2 * b + h].item()
                kept = [t for t in range(seq[b]) if not offset <= t < offset + length]
                for place, token in enumerate(kept):
                    made[slots[b, h] + place] = data[b, token, h]
        return made.view(cache.shape)

    agrees(
        lambda k, v, kc, vc, s, a, b, c: npu.npu_scatter_pa_kv_cache_functional(
            k, v, kc, vc, s, compress_lens=a, compress_seq_offsets=b, seq_lens=c
        ),
        (key, value, cache, cache.clone(), slots, lens, offsets, seq),
        lambda *_: (formula(key), formula(value)),
    )


# Norm, rotary embedding and cache in one


def kv_inputs(batch, length, mode):
    """kv [B, 1, S, 32 + 16], gamma, cos, sin, index and caches of two pages per sequence."""
    angle = rand(batch, 1, length, 8)
    both = torch.cat((angle, angle), -1)
    if mode == "Norm":
        caches = rand(batch, 1, 8, 16), rand(batch, 1, 8, 32)
        index = torch.stack(
            [torch.randperm(8, generator=torch.Generator().manual_seed(b))[:length] for b in range(batch)]
        )
    else:
        caches = rand(2 * batch, 4, 1, 16), rand(2 * batch, 4, 1, 32)
        index = torch.randperm(8 * batch, generator=torch.Generator().manual_seed(1))[: batch * length]
        if "BLK" in mode:
            index = torch.arange(2 * batch).flip(0) * 4
    index[..., 0] = index[..., 0] if "BLK" in mode else -1
    return rand(batch, 1, length, 48), rand(32).abs(), both.cos(), both.sin(), index, *caches


def kv_formula(mode):
    def formula(kv, gamma, cos, sin, index, k_cache, ckv_cache):
        value, key = rms(kv[..., :32], gamma, 1e-5), interleave_half(kv[..., 32:], cos, sin)
        made = k_cache.clone(), ckv_cache.clone()
        batch, length = kv.shape[0], kv.shape[2]
        for b in range(batch):
            for s in range(length):
                if mode == "Norm":
                    slot = index[b, s].item()
                elif "BLK" in mode:
                    slot = index[b * 2 + s // 4].item() + s % 4
                else:
                    slot = index[b * length + s].item()
                if slot < 0:
                    continue
                for cache, data in zip(made, (key, value), strict=True):
                    if mode == "Norm":
                        cache[b, 0, slot] = data[b, 0, s]
                    elif mode.endswith("NZ"):
                        page = cache[slot // 4].view(-1, 4, 16)
                        page[:, slot % 4] = data[b, 0, s].view(-1, 16)
                    else:
                        cache[slot // 4, slot % 4, 0] = data[b, 0, s]
        return *made, key, value

    return formula


@pytest.mark.parametrize("mode", ["Norm", slow("PA"), slow("PA_NZ"), slow("PA_BLK_BNSD"), slow("PA_BLK_NZ")])
def test_kv_norm_rope_cache(mode):
    inputs, formula = kv_inputs(2, 5, mode), kv_formula(mode)

    def reordered(*args):
        k_cache, ckv_cache, key, value = formula(*args)
        return key, value, k_cache, ckv_cache

    agrees(
        lambda *args: npu.npu_kv_rmsnorm_rope_cache_v2_functional(*args, cache_mode=mode, is_output_kv=True),
        inputs,
        reordered,
    )


@pytest.mark.parametrize(
    "op", [npu.npu_kv_rmsnorm_rope_cache, torch.ops.npu_inference.npu_kv_rmsnorm_rope_cache]
)
def test_kv_caches_are_written_although_the_schema_does_not_say_so(op):
    inputs = kv_inputs(2, 5, "PA")
    expected = kv_formula("PA")(*inputs)
    got = op(*inputs, cache_mode="PA")
    torch.testing.assert_close(tuple(got), expected)
    torch.testing.assert_close(inputs[5:], expected[:2])


def test_kv_int8_cache_with_values_given():
    kv, gamma, cos, sin, index, *_ = kv_inputs(2, 5, "PA")
    gamma, v, scale = rand(48).abs(), rand(2, 1, 5, 32), rand(48).abs() * 20
    k_cache, v_cache = torch.zeros(4, 4, 1, 48, dtype=i8), torch.zeros(4, 4, 1, 32)
    _, _, got, _ = npu.npu_kv_rmsnorm_rope_cache_v2_functional(
        kv, gamma, cos, sin, index, k_cache, v_cache, v=v, k_rope_scale=scale, cache_mode="PA"
    )
    normed = rms(kv, gamma, 1e-5)
    key = torch.cat((interleave_half(normed[..., :16], cos, sin), normed[..., 16:]), -1)
    _, _, stored, values = npu.npu_kv_rmsnorm_rope_cache_v2_functional(
        kv, gamma, cos, sin, index, k_cache, v_cache, v=v, k_rope_scale=scale, cache_mode="PA"
    )
    assert got.equal(stored)
    for token, slot in enumerate(index.tolist()):
        if slot >= 0:
            row = saturated(key.view(10, 48)[token] * scale)
            assert (stored[slot // 4, slot % 4, 0] - row).abs().max() <= 1
            torch.testing.assert_close(values[slot // 4, slot % 4, 0], v.view(10, 32)[token])


def qkv_inputs():
    angle = rand(5, 4)
    both = torch.cat((angle, angle), -1)
    slots = torch.tensor([3, 9, -1, 11, 6])
    caches = torch.zeros(5, 16), torch.zeros(3, 2, 4, 8, dtype=i8), torch.zeros(3, 1, 4, 8)
    return (
        rand(5, 40),
        rand(8).abs(),
        rand(8).abs() + 1,
        both.cos(),
        both.sin(),
        slots,
        *caches,
        rand(2, 8).abs() / 20 + 0.02,
    )


def qkv_formula(qkv, q_gamma, k_gamma, cos, sin, slots, q_out, k_cache, v_cache, scale):
    heads = qkv.view(5, 5, 8)
    query, key = rms(heads[:, :2], q_gamma, 1e-6), rms(heads[:, 2:4], k_gamma, 1e-6)
    query, key = (x * cos.unsqueeze(1) + turned(x) * sin.unsqueeze(1) for x in (query, key))
    k_cache, v_cache = k_cache.clone(), v_cache.clone()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_cache[slot // 4, :, slot % 4] = saturated(key[token] / scale)
            v_cache[slot // 4, :, slot % 4] = heads[token, 4:]
    before = query.flatten(1), key.flatten(1), heads[:, 4:].flatten(1)
    return *before, query.flatten(1), k_cache, v_cache


def run_qkv(op):
    return lambda *args: op(*args[:-1], [1, 5, 5, 8], [2, 2, 1], k_scale=args[-1], is_output_qkv=True)


def test_qkv_norm_rope_cache():
    agrees(run_qkv(npu.npu_qkv_rms_norm_rope_cache_functional), qkv_inputs(), qkv_formula)


@pytest.mark.parametrize("mode", MODES)
def test_qkv_in_place(mode):
    inputs = qkv_inputs()
    expected = qkv_formula(*inputs)
    run_qkv(npu.npu_qkv_rms_norm_rope_cache)(*inputs)
    torch.testing.assert_close(inputs[6:9], expected[3:])
    *parts, scale = qkv_inputs()
    parts = [halved(part, torch.bfloat16) for part in parts]
    compiles(run_qkv(npu.npu_qkv_rms_norm_rope_cache), (*parts, scale), mode, False)


def rope_inputs(cache_mode):
    """x [2, 3, 16 + 8 + 8], cos, sin, caches, indices, scales; heads of 8 columns."""
    angle = rand(2, 3, 1, 4)
    both = torch.cat((angle, angle), -1)
    shape, indices = ((2, 6, 1, 8), torch.tensor([3, 0])) if cache_mode == "contiguous" else (
        (3, 4, 1, 8), torch.tensor([1, 2, 3, 8, 9, -1]))  # fmt: skip
    caches = ints(-9, 9, *shape, dtype=i8), ints(-9, 9, *shape, dtype=i8, seed=1)
    return (
        rand(2, 3, 32),
        both.cos(),
        both.sin(),
        *caches,
        indices,
        rand(1, 8).abs() * 9,
        rand(1, 8).abs() * 9,
    )


def rope_formula(cache_mode):
    def formula(x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v):
        q, k, v = x[..., :16].view(2, 3, 2, 8), x[..., 16:24].view(2, 3, 1, 8), x[..., 24:].view(2, 3, 1, 8)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        made = k_cache.clone(), v_cache.clone()
        for cache, data, scale in zip(made, (k, v), (scale_k, scale_v), strict=True):
            for b in range(2):
                for s in range(3):
                    if cache_mode == "contiguous":
                        cache[b, indices[b] + s] = saturated(data[b, s] * scale)
                    elif indices[3 * b + s] >= 0:
                        slot = indices[3 * b + s]
                        cache[slot // 4, slot % 4] = saturated(data[b, s] * scale)
        return q, k, v, *made

    return formula


@pytest.mark.full
@pytest.mark.parametrize("cache_mode", ["contiguous", "page"])
def test_rope_quant_cache(cache_mode):
    inputs = rope_inputs(cache_mode)
    expected = rope_formula(cache_mode)(*inputs)

    def op(fn):
        return lambda *args: fn(*args, [16, 8, 8], kv_output=True, cache_mode=cache_mode)

    if cache_mode == "contiguous":
        agrees(op(air.npu_rope_quant_kvcache_functional), inputs, rope_formula(cache_mode))
    got = op(npu.npu_rope_quant_kvcache)(*inputs)
    torch.testing.assert_close(tuple(got), expected)
    assert torch.equal(inputs[3], expected[3])
    assert torch.equal(inputs[4], expected[4])
    for mode in MODES:
        told = pytest.warns(DegradedWarning, match="no IR op expresses these types")
        with told if (cache_mode, mode) == ("page", "max-autotune") else contextlib.nullcontext():
            compiles(op(npu.npu_rope_quant_kvcache), rope_inputs(cache_mode), mode, False)


def test_dequant_rope_quant_cache():
    x, *rest = rope_inputs("contiguous")
    whole, columns, rows = ints(-99, 99, 2, 3, 32, dtype=i32), rand(32), rand(2, 3)
    numbers = whole * columns * rows.unsqueeze(-1)
    got = npu.npu_dequant_rope_quant_kvcache(
        whole, *rest, [16, 8, 8], weight_scale=columns, activation_scale=rows, kv_output=True
    )
    assert x.shape == numbers.shape
    expected = rope_formula("contiguous")(numbers, *rope_inputs("contiguous")[1:])
    torch.testing.assert_close(tuple(got), expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_compiled_writes(mode, dynamic):
    def step(cache, index, update):
        npu.scatter_update_(cache, index, update, -2)
        return cache.sum(-1)

    compiles(step, (CACHE, torch.tensor([5, 0, 3]), rand(3, 2, 1, 4)), mode, dynamic)


def test_a_view_of_the_cache_is_written_through():
    def step(cache, index, update):
        npu.scatter_update_(cache.view(3, 2, 8, 4), index, update, -2)
        return update * 2

    compiles(step, (CACHE.view(6, 8, 4), torch.tensor([5, 0, 3]), rand(3, 2, 1, 4)), "max-autotune", False)
