"""Prepare latent attention: down and up projections of queries, the latent key with its rotary part, and
writes of both into the caches.

Integer products are exact, all other arithmetic is float32; results have the dtype of `weight_uk`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from torchair.core import dtypes
from torchair.ops.npu.attention.cache import put_in_nz_pages, put_in_pages, token_slots
from torchair.ops.npu.attention.rotary import INTERLEAVE_HALF, roped
from torchair.ops.npu.common.op_spec import InPlaceOp, NpuOp, made
from torchair.ops.npu.common.sequences import numbers, packed
from torchair.ops.npu.dense.matmul import product
from torchair.ops.npu.dense.norm import normalized
from torchair.ops.numerics.formats import (
    E4M3,
    HIF8,
    INT8,
    divided,
    dynamic,
    ir_type,
    largest,
    load,
    mx,
    power_of_two,
    static,
    store,
    wide,
)

# Number of values that share a power of two.
_BLOCK = 32
# weight_quant_mode
_MICROSCALED, _HIF8 = 3, 5
# kv_cache_quant_mode
_BY_TILES = 3


class Quantized(NamedTuple):
    """Quantized rows, their scale for the product (or None), and the scale to return."""

    rows: torch.Tensor
    scale: torch.Tensor | None
    returned: torch.Tensor | None


def powers(scale):
    """Return the values of e8m0 scales, which may be stored as bytes."""
    return power_of_two(scale) if scale.dtype == torch.uint8 else scale.float()


def scaled_product(x, weight, x_scale, weight_scale):
    """Return x @ weight in float32, times scales per row and per column."""
    y = wide(product(x, weight))
    y = y if x_scale is None else y * wide(x_scale).reshape(*y.shape[:-1], 1)
    return y if weight_scale is None else y * wide(weight_scale).reshape(-1)


def microscaled_product(x, weight, x_scale, weight_scale):
    """Return the product with a power of two for every 32 values: x [T, K/32], weight [N, K/32]."""
    left = wide(x) * powers(x_scale).reshape(*x.shape[:-1], -1).repeat_interleave(_BLOCK, -1)
    right = wide(weight) * powers(weight_scale).repeat_interleave(_BLOCK, -1).mT
    return left @ right


def quantized_latent(cq, weight, smooth, mode) -> Quantized:
    """Return the latent query for the up projection: unchanged, or quantized like the weight."""
    if mode == _MICROSCALED:
        stored, scale = mx(cq, E4M3)
        flat = scale.flatten(-2)[..., : cq.shape[-1] // _BLOCK]
        return Quantized(stored, flat, flat)
    if weight.dtype.itemsize > 1 and mode != _HIF8:
        return Quantized(cq, None, None)
    smoothed = cq if smooth is None else cq * wide(smooth).reshape(-1)
    stored, scale = dynamic(smoothed, HIF8 if mode == _HIF8 else dtypes.to_ge(weight.dtype))
    return Quantized(stored, scale, scale.reshape(-1, 1))


def numbers_of(rows):
    """Decode hifloat8 bytes."""
    return load(rows) if rows.dtype == torch.uint8 else rows


def tokens_of(x):
    """Reshape [B, S, …] or [T, …] to [T, …]."""
    return x.flatten(0, 1) if x.ndim == 3 else x


# Caches


def token_places(index, cache, mode, shape, ends):
    """Return the slot of every token; modes with BLK have only the first slot of each page."""
    if "BLK" not in mode:
        return index
    rows = cache.shape[1]
    if len(shape) == 3:
        return token_slots(index, shape[0], shape[1], rows)
    ends = numbers(ends, cache.device)
    assert ends is not None, "paged modes with packed tokens need the ends of sequences"
    where = packed(shape[0], ends)
    assert where.sequence is not None and where.valid is not None, "packed tokens have a sequence"
    position, sequence, valid = (x.squeeze(0) for x in (where.position, where.sequence, where.valid))
    pages = -(-torch.diff(ends, prepend=ends.new_zeros(1)) // rows)
    first = (pages.cumsum(0) - pages)[sequence.clamp(max=ends.shape[0] - 1)]
    slot = index.reshape(-1)[(first + position // rows).clamp(max=index.numel() - 1)]
    return torch.where((slot >= 0) & valid, slot + position % rows, -1)


def written(cache, tokens, index, mode, shape, ends):
    """Return the cache with rows [T, D] at their slots; without an index, the cache is these tokens."""
    if index is None:
        return tokens.to(cache.dtype).reshape(cache.shape)
    slots = token_places(index, cache, mode, shape, ends)
    if mode.endswith("NZ"):
        return put_in_nz_pages(cache, slots, tokens, 32 if cache.dtype.itemsize == 1 else 16)
    return put_in_pages(cache, slots, tokens.unsqueeze(1))


def kind_of(cache):
    """Return the type of a cache; bytes are hifloat8."""
    return HIF8 if cache.dtype == torch.uint8 else dtypes.to_ge(cache.dtype)


def as_stored(x, scale, cache):
    """Return round(x · scale) in the type of the cache, or x in its dtype."""
    return x.to(cache.dtype) if scale is None else static(x, scale.reshape(-1), None, kind_of(cache))


def tiled_rows(c, rope, clip, tile_size, kind):
    """Return rows of bytes: quantized tiles, the optional rotary part, float32 scales of the tiles."""
    by_tile = c.unflatten(-1, (-1, tile_size))
    peak = by_tile.abs().amax(-1, keepdim=True)
    if clip is not None:
        peak = peak * wide(clip).reshape(-1)
        by_tile = torch.minimum(torch.maximum(by_tile, -peak), peak)
    scale = peak / largest(kind)
    parts = [store(divided(by_tile, scale), kind).flatten(-2)]
    parts += [] if rope is None else [rope]
    parts.append(scale.squeeze(-1))
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)


# The op


def prolog(
    x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, gamma_cq, gamma_ckv, sin, cos, index, kv_cache,
    kr_cache, scales, quant_scales, smooth, *, epsilons, cache_mode, quantizes_query, ends=None, clip=None,
    query_norm_flag=False, weight_mode=0, cache_quant_mode=0, rope_in_tiles=False, tile_size=128,
    factors=(1.0, 1.0),
):  # fmt: skip
    """Return (query, query_rope, kv_cache, kr_cache, scale of the query, latent query, its scale).

    `scales` belong to x and the three weights, `quant_scales` to the two caches; `factors` multiply the
    latent query and key.
    """
    x_scale, *weight_scales = scales
    multiply = microscaled_product if weight_mode == _MICROSCALED else scaled_product
    shape, dtype = x.shape, weight_uk.dtype
    x, sin, cos = (tokens_of(part) for part in (x, sin, cos))
    cq, _ = normalized(multiply(x, weight_dq, x_scale, weight_scales[0]), gamma_cq, epsilons[0])
    cq = cq * factors[0]
    latent = quantized_latent(cq, weight_uq_qr, smooth, weight_mode)
    up = multiply(numbers_of(latent.rows), weight_uq_qr, latent.scale, weight_scales[1])
    heads, inner = weight_uk.shape[0], weight_uk.shape[1]
    nope, turned = up.unflatten(-1, (heads, -1)).split([inner, sin.shape[-1]], -1)
    query = torch.einsum("tnd,ndc->tnc", nope, wide(weight_uk))
    query_rope = roped(turned, cos.unsqueeze(1), sin.unsqueeze(1), INTERLEAVE_HALF)
    query_scale = query.new_zeros(1)
    if quantizes_query:
        query, found = dynamic(query, HIF8 if weight_mode == _HIF8 else small_kind(x))
        query_scale = found.unsqueeze(-1)
        back = 1.0 if quant_scales[0] is None else wide(quant_scales[0]).reshape(-1)[0]
        query_rope = divided(query_rope * back, query_scale)
    width = gamma_ckv.shape[-1]
    down = multiply(x, weight_dkv_kr, x_scale, weight_scales[2])
    c, _ = normalized(down[..., :width], gamma_ckv, epsilons[1])
    c, rope = c * factors[1], roped(down[..., width:], cos, sin, INTERLEAVE_HALF)
    if cache_quant_mode == _BY_TILES:
        rope_columns = rope.to(dtype) if rope_in_tiles else None
        stored = tiled_rows(c, rope_columns, clip, tile_size, kind_of(kv_cache)).view(kv_cache.dtype)
    else:
        stored = as_stored(c, quant_scales[0], kv_cache)
    where = index, cache_mode, shape, ends
    kv_cache = written(kv_cache, stored, *where)
    if not rope_in_tiles:
        kr_cache = written(kr_cache, as_stored(rope, quant_scales[1], kr_cache), *where)
    query = query if quantizes_query else query.to(dtype)
    return (
        query.reshape(*shape[:-1], *query.shape[1:]), query_rope.to(dtype).reshape(*shape[:-1], heads, -1),
        kv_cache, kr_cache, query_scale, *returned_latent(latent, shape, dtype, query_norm_flag),
    )  # fmt: skip


def returned_latent(latent: Quantized, shape, dtype, wanted):
    """Return (latent query, its scale); empty if they are not requested or there is no scale."""
    if not wanted:
        return latent.rows.new_empty(0, dtype=dtype), latent.rows.new_empty(0, dtype=torch.float32)
    rows = latent.rows if latent.returned is not None else latent.rows.to(dtype)
    scale = latent.rows.new_empty(0, dtype=torch.float32) if latent.returned is None else latent.returned
    return rows.reshape(*shape[:-1], -1), scale


def small_kind(x):
    """Return the type of a quantized query: that of x if it is a small one."""
    return dtypes.to_ge(x.dtype) if x.dtype.itemsize == 1 else INT8


def _first_versions(outputs, can_quantize):
    """Define the first two versions of the op, by the number of outputs and whether queries can be int8."""

    def mla_prolog(
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv,
        rope_sin, rope_cos, cache_index, kv_cache, kr_cache, dequant_scale_x, dequant_scale_w_dq,
        dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq, *,
        rmsnorm_epsilon_cq=1e-5, rmsnorm_epsilon_ckv=1e-5, cache_mode="PA_BSND",
    ):  # fmt: skip
        is_int8 = token_x.dtype == torch.int8 and quant_scale_ckv is not None
        return prolog(
            token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv,
            rope_sin, rope_cos, cache_index, kv_cache, kr_cache,
            (dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr),
            (quant_scale_ckv, quant_scale_ckr), smooth_scales_cq, cache_mode=cache_mode,
            epsilons=(rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv), quantizes_query=can_quantize and is_int8,
        )[:outputs]  # fmt: skip

    return mla_prolog


# (query, query_rope, kv_cache, kr_cache), and the scale of the query, which is int8 if x and the cache are.
mla_prolog, mla_prolog_with_scale = _first_versions(4, False), _first_versions(5, True)


def mla_prolog_v3(
    token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
    rope_cos, kv_cache, kr_cache, cache_index, dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr,
    dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq, actual_seq_len,
    k_nope_clip_alpha, *, rmsnorm_epsilon_cq=1e-5, rmsnorm_epsilon_ckv=1e-5, cache_mode="PA_BSND",
    query_norm_flag=False, weight_quant_mode=0, kv_cache_quant_mode=0, query_quant_mode=0, ckvkr_repo_mode=0,
    quant_scale_repo_mode=0, tile_size=128, qc_qr_scale=1.0, kc_scale=1.0,
):  # fmt: skip
    """Prepare latent attention with more quantization modes; returns the latent query with its scale, too."""
    return prolog(
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv,
        rope_sin, rope_cos, cache_index, kv_cache, kr_cache,
        (dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr),
        (quant_scale_ckv, quant_scale_ckr), smooth_scales_cq,
        epsilons=(rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv), cache_mode=cache_mode, ends=actual_seq_len,
        quantizes_query=query_quant_mode == 1, clip=k_nope_clip_alpha, query_norm_flag=query_norm_flag,
        weight_mode=weight_quant_mode, cache_quant_mode=kv_cache_quant_mode,
        rope_in_tiles=ckvkr_repo_mode == 1, tile_size=tile_size, factors=(qc_qr_scale, kc_scale),
    )  # fmt: skip


def _loaded(x, code):
    """Decode hifloat8 data, which only a type code identifies."""
    return load(x) if ir_type(code) == HIF8 else x


_LOADED = ("token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr")
_CODES = (*(f"{name}_dtype" for name in _LOADED), "kv_cache_dtype")
_CODED = {name: made(_loaded, name, f"{name}_dtype") for name in _LOADED}
_CACHES = ("kv_cache", "kr_cache")
_WRITES = {"kv_cache": 2, "kr_cache": 3}


def _rows(op, **kind):
    """Return two rows, because the IR cannot express that bytes are hifloat8."""
    return (
        NpuOp(
            op, "", mla_prolog_v3, _CODED, ignored=_CODES, **kind,
            when=lambda given: any(ir_type(given[code]) == HIF8 for code in _CODES),
        ),
        NpuOp(op, "MlaPrologV3", mla_prolog_v3, ignored=_CODES, **kind),
    )  # fmt: skip


ROWS = (
    NpuOp("torchair::npu_mla_prolog_functional", "MlaProlog", mla_prolog, copies=_CACHES),
    NpuOp("npu_mla_prolog", "MlaProlog", mla_prolog, writes=_WRITES),
    NpuOp("torchair::npu_mla_prolog_v2_functional", "MlaPrologV2", mla_prolog_with_scale, copies=_CACHES),
    NpuOp("npu_mla_prolog_v2", "MlaPrologV2", mla_prolog_with_scale, writes=_WRITES),
    *_rows("npu_mla_prolog_v3_functional", outputs=(0, 1, 4, 5, 6, 2, 3), copies=_CACHES),
    *_rows("npu_mla_prolog_v3", outputs=(0, 1, 4, 5, 6), writes=_WRITES),
)
IN_PLACE = (
    InPlaceOp("npu_mla_prolog", "torchair::npu_mla_prolog_functional", _WRITES, (0, 1, *_CACHES)),
    InPlaceOp("npu_mla_prolog_v2", "torchair::npu_mla_prolog_v2_functional", _WRITES, (0, 1, *_CACHES, 4)),
    InPlaceOp(
        "npu_mla_prolog_v3", "npu_mla_prolog_v3_functional", {"kv_cache": 5, "kr_cache": 6}, (0, 1, 2, 3, 4)
    ),
)
