"""Write into caches: scatter along a dim, by coordinates, by slots of pages; and fusions of norm, rotary
embedding and quantization that write their results into a cache.

Every write is one `index_put`, so that compilers can do it in place. A page in NZ layout is [pieces, rows,
width] instead of [rows, columns].
"""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.ops.npu.attention.rotary import HALF, INTERLEAVE_HALF, roped
from torchair.ops.npu.common.op_spec import InPlaceOp, NpuOp, fixed, made
from torchair.ops.npu.dense.activation import dequantized
from torchair.ops.npu.dense.norm import normalized
from torchair.ops.numerics.formats import INT8, static, wide

aten = torch.ops.aten


# Writes along one dim of the batch


def scattered(var, indices, updates, axis, put=aten.index_put):
    """Return var with updates[i] written along `axis` from position indices[i] of batch entry i on.
    Two-column indices are [entry, position].
    """
    axis = axis % var.ndim
    rows, starts = indices.unbind(1) if indices.ndim == 2 else (None, indices)
    count, length = updates.shape[0], updates.shape[axis]
    rows = torch.arange(count, device=var.device) if rows is None else rows.to(torch.int64)
    positions = starts.to(torch.int64).unsqueeze(1) + torch.arange(length, device=var.device)
    index = [rows.unsqueeze(1), *[None] * (axis - 1), positions]
    return put(var, index, updates.movedim(axis, 1).to(var.dtype))


def scatter(var, indices, updates, *, reduce, axis=0):
    """Write rows from a position of each batch entry on."""
    assert reduce == "update", "only reduce='update' is defined"
    return scattered(var, indices, updates, axis)


def stored_updates(var, updates, quant_scales, quant_zero_points, quant_axis, round_mode):
    """Return the updates divided by their scale, in the type of the cache."""
    shape = [-1 if dim == quant_axis % updates.ndim else 1 for dim in range(updates.ndim)]
    scale, zero = (
        None if part is None else part.reshape(shape) if part.ndim == 1 else part
        for part in (quant_scales, quant_zero_points)
    )
    return static(updates, scale, zero, dtypes.to_ge(var.dtype), divide=True, mode=round_mode)


def quant_update_scatter(
    var, indices, updates, quant_scales, quant_zero_points, *, reduce, axis=-2, quant_axis=-1,
    round_mode="rint",
):  # fmt: skip
    """Write rows like `scatter`, quantizing the updates."""
    assert reduce == "update", "only reduce='update' is defined"
    values = stored_updates(var, updates, quant_scales, quant_zero_points, quant_axis, round_mode)
    return scattered(var, indices, values, axis)


def scatter_nd(var, indices, updates, put=aten.index_put):
    """Return var with var[indices[p]] = updates[p]; the last dim of `indices` has coordinates."""
    index = list(indices.to(torch.int64).unbind(-1))
    return put(var, index, updates.to(var.dtype))


def scatter_nd_update(var, indices, updates, *, use_locking=False):
    """Write values at coordinates."""
    return scatter_nd(var, indices, updates)


def scatter_list(var, indice, updates, mask, *, reduce="update", axis=-2):
    """Write one entry of the list each, where the mask is not 0."""
    assert reduce == "update", "only reduce='update' is defined"
    made = []
    for number, entry in enumerate(var):
        start = indice[number].reshape(1)
        written = scattered(
            entry.unsqueeze(0), start, updates[number].unsqueeze(0), _inner_axis(axis, entry.ndim)
        )
        selected = (
            written.squeeze(0) if mask is None else torch.where(mask[number] != 0, written.squeeze(0), entry)
        )
        made.append(selected)
    return made


def _inner_axis(axis, ndim):
    """Convert an axis of the updates [list, …] to the dims of one entry."""
    return axis if axis < 0 else axis % (ndim + 1)


def gather_backward(grad, self_size, dim, index, sparse_grad):
    """Return the dense gradient of gather."""
    return grad.new_zeros(self_size).scatter_add(dim, index, grad)


def prefetch(self, dependency, max_size, offset=0):
    """Check the arguments of a prefetch hint, which has no effect on values."""
    if dependency is None:
        raise ValueError("npu_prefetch needs a dependency: pass the tensor after which the load may start")
    if max_size <= 0 or offset < 0:
        raise ValueError(f"npu_prefetch expects max_size > 0 and offset >= 0, got {max_size} and {offset}")


# Writes of tokens into slots


def put_tokens(cache, index_of, slots, values):
    """Return the cache with values[t] at slot t; a negative slot is skipped.

    Skipped tokens repeat the first token that is not skipped, so every entry writes a valid value; if all
    tokens are skipped, slot 0 is written with its own value.
    """
    slots = slots.flatten().to(torch.int64)
    valid = slots >= 0
    first = valid.to(torch.int64).argmax()
    source = torch.where(valid, torch.arange(slots.shape[0], device=slots.device), first)
    index = index_of(slots[source].clamp(min=0))
    values = torch.where(valid.any(), values[source].to(cache.dtype), aten.index(cache, index))
    return aten.index_put(cache, index, values)


def put_in_pages(cache, slots, values):
    """Write tokens [T, N, D] into a cache [blocks, rows, N, D]."""
    rows = cache.shape[1]
    return put_tokens(cache, lambda slot: [slot // rows, slot % rows], slots, values)


def put_in_pieces(cache, slots, values):
    """Write tokens [T, columns] into a cache [blocks, pieces, rows, width], cut into pieces of that width."""
    rows, width = cache.shape[2], cache.shape[3]
    pieces = values.flatten(1).unflatten(1, (-1, width))
    return put_tokens(cache, lambda slot: [slot // rows, None, slot % rows], slots, pieces)


def put_in_nz_pages(cache, slots, values, width):
    """Write tokens [T, D] into pages [blocks, rows, 1, D] stored in pieces of `width` columns."""
    blocks, rows, columns = cache.shape[0], cache.shape[1], cache.shape[-1]
    pieces = cache.reshape(blocks, columns // width, rows, width)
    return put_in_pieces(pieces, slots, values).reshape(cache.shape)


def put_in_sequences(cache, positions, values):
    """Write tokens [B, S, D] into a cache [B, N, Smax, D] at their positions."""
    length = cache.shape[2]
    batch = torch.arange(positions.shape[0], device=positions.device).unsqueeze(1)
    slots = torch.where(positions >= 0, batch * length + positions, -1)
    return put_tokens(
        cache, lambda slot: [slot // length, None, slot % length], slots, values.flatten(0, 1).unsqueeze(1)
    )


def token_slots(index, batch, length, rows):
    """Return the slot of every token if the index has only the first slot of each page."""
    token = torch.arange(length, device=index.device)
    pages = -(-length // rows)
    first = index.reshape(batch, pages)[:, token // rows]
    return torch.where(first >= 0, first + token % rows, -1)


def write_cache(cache, values, index, mode):
    """Write tokens [B, S, D] into a cache with the layout `mode`."""
    if mode == "Norm":
        return put_in_sequences(cache, index.reshape(values.shape[:2]), values)
    slots = index
    if "BLK" in mode:
        slots = token_slots(index, values.shape[0], values.shape[1], cache.shape[1])
    tokens = values.flatten(0, 1)
    if mode.endswith("NZ"):
        return put_in_nz_pages(cache, slots, tokens, 32 if cache.dtype == torch.int8 else 16)
    return put_in_pages(cache, slots, tokens.unsqueeze(1))


def compressed_slots(slot_mapping, tokens, lengths, offsets, seq_lens):
    """Return slots [B, S, N]: tokens of (b, head) outside a span are consecutive from its slot on."""
    batch, heads = slot_mapping.shape
    token = torch.arange(tokens, device=slot_mapping.device).reshape(1, -1, 1)
    length, offset = lengths.reshape(batch, 1, heads), offsets.reshape(batch, 1, heads)
    after = token >= offset + length
    selected = ((token < offset) | after) & (token < seq_lens.reshape(batch, 1, 1))
    slot = slot_mapping.unsqueeze(1) + token - torch.where(after, length, 0)
    return torch.where(selected & (slot_mapping.unsqueeze(1) >= 0), slot, -1)


def scatter_pa_kv_cache(
    key, key_cache, slot_mapping, value, value_cache, compress_lens, compress_seq_offset, seq_lens, *,
    cache_mode="Norm", scatter_mode="None", strides=(1, 1), offsets=(0, 0),
):  # fmt: skip
    """Write keys and values of tokens into the slots of their pages."""
    assert scatter_mode == "None", "the mode follows from the inputs"
    if key.ndim == 4:
        assert compress_lens is not None and compress_seq_offset is not None and seq_lens is not None
        slots = compressed_slots(slot_mapping, key.shape[1], compress_lens, compress_seq_offset, seq_lens)
        return tuple(
            put_in_pages(cache, slots, data.flatten(0, 2).unsqueeze(1))
            for cache, data in ((key_cache, key), (value_cache, value))
        )
    put = put_in_pieces if cache_mode == "PA_NZ" else put_in_pages
    return put(key_cache, slot_mapping, key), put(value_cache, slot_mapping, value)


# Norm, rotary embedding, quantization, cache


def cached(value, scale, offset, cache):
    """Return a value as the cache stores it: value · scale + offset in int8, or unchanged."""
    return value.to(cache.dtype) if scale is None else static(value, scale, offset, INT8)


def kv_rms_norm_rope_cache(
    kv, gamma, cos, sin, index, k_cache, ckv_cache, k_rope_scale, c_kv_scale, k_rope_offset, c_kv_offset, v,
    *, epsilon=1e-5, cache_mode="Norm", is_output_kv=False,
):  # fmt: skip
    """Return (key cache, value cache, rotated part, normalized part).

    Without v, the leading columns of kv [B, 1, S, …] are normalized and the others rotated. With v, all of kv
    is normalized and its leading columns rotated, and v is the value.
    """
    tokens = wide(kv.squeeze(1))
    angles = cos.squeeze(1), sin.squeeze(1)
    if v is None:
        width = gamma.shape[-1]
        value, _ = normalized(tokens[..., :width], gamma, epsilon)
        key = roped(tokens[..., width:], *angles, INTERLEAVE_HALF)
    else:
        normed, _ = normalized(tokens, gamma, epsilon)
        width = cos.shape[-1]
        turned = roped(normed[..., :width], *angles, INTERLEAVE_HALF)
        key, value = torch.cat((turned, normed[..., width:]), -1), wide(v.squeeze(1))
    key, value = key.to(kv.dtype), value.to(kv.dtype)
    k_cache = write_cache(k_cache, cached(key, k_rope_scale, k_rope_offset, k_cache), index, cache_mode)
    ckv_cache = write_cache(ckv_cache, cached(value, c_kv_scale, c_kv_offset, ckv_cache), index, cache_mode)
    return k_cache, ckv_cache, key.unsqueeze(1), value.unsqueeze(1)


def qkv_rms_norm_rope_cache(
    qkv, q_gamma, k_gamma, cos, sin, index, q_out, k_cache, v_cache, k_scale, v_scale, k_offset, v_offset, *,
    qkv_size, head_nums, epsilon=1e-6, cache_mode="PA_NZ", is_output_qkv=False,
):  # fmt: skip
    """Normalize queries and keys per head, rotate them, and write keys and values into their caches, as int8
    if there are scales.

    Returns (queries, key cache, value cache, then the three before quantization, empty unless requested).
    """
    heads = qkv.unflatten(-1, (sum(head_nums), -1)).split(list(head_nums), 1)
    angles = cos.unsqueeze(1), sin.unsqueeze(1)
    query, key = (
        roped(normalized(wide(part), gamma, epsilon)[0], *angles, HALF).to(qkv.dtype)
        for part, gamma in zip(heads, (q_gamma, k_gamma), strict=False)
    )
    put = put_in_pieces if cache_mode.endswith("NZ") else put_in_pages
    parts = ((key, k_scale, k_offset, k_cache), (heads[2], v_scale, v_offset, v_cache))
    caches = [
        put(
            cache,
            index,
            part.to(cache.dtype) if scale is None else static(part, scale, offset, INT8, divide=True),
        )
        for part, scale, offset, cache in parts
    ]
    flat = [part.flatten(1) for part in (query, key, heads[2])]
    before = flat if is_output_qkv else [qkv.new_empty(0) for _ in flat]
    return flat[0].to(q_out.dtype), *caches, *before


def dequant_rope_quant_kvcache(
    x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, offset_k, offset_v, weight_scale,
    activation_scale, bias, *, size_splits, quant_mode="static", layout="BSND", kv_output=False,
):  # fmt: skip
    """Return (queries, keys, values, key cache, value cache); row b of a cache [B, Smax, N, D] is written
    from position indices[b] on.
    """
    parts = (offset_k, offset_v, weight_scale, activation_scale, bias)
    return _rope_quant(
        x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, *parts, size_splits, kv_output, paged=False
    )


def paged_rope_quant_kvcache(
    x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, offset_k, offset_v, weight_scale,
    activation_scale, bias, *, size_splits, quant_mode="static", layout="BSND", kv_output=False,
):  # fmt: skip
    """Return the same as `dequant_rope_quant_kvcache` for the slots of pages [blocks, rows, N, D]."""
    parts = (offset_k, offset_v, weight_scale, activation_scale, bias)
    return _rope_quant(
        x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, *parts, size_splits, kv_output, paged=True
    )


def _rope_quant(
    x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, offset_k, offset_v, weight_scale,
    activation_scale, bias, size_splits, kv_output, paged,
):  # fmt: skip
    values = dequantized(x, weight_scale, activation_scale, bias) if x.dtype == torch.int32 else wide(x)
    width = k_cache.shape[-1]
    query, key, value = (part.unflatten(-1, (-1, width)) for part in values.split(list(size_splits), -1))
    cosine, sine = (part.reshape(*x.shape[:-1], 1, width) for part in (cos, sin))
    query, key = (roped(part, cosine, sine, HALF).to(cos.dtype) for part in (query, key))
    value = value.to(cos.dtype)
    caches = []
    for part, scale, offset, cache in (
        (key, scale_k, offset_k, k_cache),
        (value, scale_v, offset_v, v_cache),
    ):
        stored = static(part, scale, offset, INT8)
        tokens = stored.reshape(-1, *stored.shape[-2:])
        if paged:
            caches.append(put_in_pages(cache, indices, tokens))
        else:
            caches.append(scattered(cache, indices, tokens.reshape(x.shape[0], -1, *tokens.shape[1:]), 1))
    selected = (key, value) if kv_output else (key.new_empty(0), value.new_empty(0))
    return query, *selected, *caches


# In-place writes, for tensors with data


def scatter_update_here(self, indices, updates, axis):
    """Write into the tensor itself."""
    return scattered(self, indices, updates, axis, aten.index_put_)


def quant_scatter_here(
    self, indices, updates, quant_scales, quant_zero_points=None, axis=-2, quant_axis=-1, reduce="update",
    dst_type=None, round_mode="rint",
):  # fmt: skip
    """Write into the tensor itself."""
    values = stored_updates(self, updates, quant_scales, quant_zero_points, quant_axis, round_mode or "rint")
    return scattered(self, indices, values, axis, aten.index_put_)


def scatter_nd_update_here(self, indices, updates):
    """Write into the tensor itself."""
    return scatter_nd(self, indices, updates, aten.index_put_)


_VAR = {"var": "self"}
_UPDATE = _VAR | {"reduce": fixed("update")}
_QUANT = _VAR | {"round_mode": made(lambda mode: mode or "rint", "round_mode")}
_KV = ("k_cache_dtype", "ckv_cache_dtype")
_ROPE = {"quant_mode": made(lambda mode: ("static", "dynamic")[mode], "quant_mode"), "layout": "input_layout"}


def _rope_rows(op, **kind):
    """Return two rows, because the IR op has no attribute for pages."""
    return (
        NpuOp(
            op,
            "",
            paged_rope_quant_kvcache,
            _ROPE,
            when=lambda given: given["cache_mode"] == "page",
            ignored=("cache_mode",),
            **kind,
        ),
        NpuOp(
            op, "DequantRopeQuantKvcache", dequant_rope_quant_kvcache, _ROPE, ignored=("cache_mode",), **kind
        ),
    )


_CACHES = ("k_cache", "v_cache")
_ROPE_WRITES = {"k_cache": 3, "v_cache": 4}
_PAGES = {
    "compress_seq_offset": "compress_seq_offsets",
    "cache_mode": made(lambda mode: mode or "PA_NZ", "cache_mode"),
}
_PAGE_WRITES = {"key_cache": 0, "value_cache": 1}
_QKV_COPIES = ("q_out", "k_cache", "v_cache")
ROWS = (
    NpuOp("scatter_update", "Scatter", scatter, _UPDATE, copies=("self",)),
    NpuOp("scatter_update_", "Scatter", scatter, _UPDATE, writes={"self": 0}),
    NpuOp(
        "npu_quant_scatter",
        "QuantUpdateScatter",
        quant_update_scatter,
        _QUANT,
        copies=("self",),
        ignored=("dst_type",),
    ),
    NpuOp(
        "npu_quant_scatter_",
        "QuantUpdateScatter",
        quant_update_scatter,
        _QUANT,
        writes={"self": 0},
        ignored=("dst_type",),
    ),
    NpuOp("npu_scatter_nd_update", "ScatterNdUpdate", scatter_nd_update, _VAR, copies=("self",)),
    NpuOp("npu_scatter_nd_update_", "ScatterNdUpdate", scatter_nd_update, _VAR, writes={"self": 0}),
    NpuOp(
        "npu_scatter_list",
        "ScatterList",
        scatter_list,
        _VAR | {"indice": "indices"},
        copies=("self",),
        count=lambda given: len(given["self"]),
    ),
    NpuOp(
        "npu_scatter_pa_kv_cache_functional",
        "ScatterPaKvCache",
        scatter_pa_kv_cache,
        _PAGES,
        copies=("key_cache", "value_cache"),
    ),
    NpuOp(
        "npu_scatter_pa_kv_cache",
        "ScatterPaKvCache",
        scatter_pa_kv_cache,
        _PAGES,
        outputs=(),
        writes=_PAGE_WRITES,
    ),
    NpuOp(
        "npu_kv_rmsnorm_rope_cache_v2_functional",
        "KvRmsNormRopeCache",
        kv_rms_norm_rope_cache,
        outputs=(2, 3, 0, 1),
        copies=("k_cache", "ckv_cache"),
        ignored=_KV,
    ),
    *(
        NpuOp(op, "KvRmsNormRopeCache", kv_rms_norm_rope_cache, writes={"k_cache": 0, "ckv_cache": 1})
        for op in ("npu_kv_rmsnorm_rope_cache", "npu_inference::npu_kv_rmsnorm_rope_cache")
    ),
    NpuOp(
        "npu_qkv_rms_norm_rope_cache_functional",
        "QkvRmsNormRopeCache",
        qkv_rms_norm_rope_cache,
        outputs=(3, 4, 5, 0, 1, 2),
        copies=_QKV_COPIES,
    ),
    NpuOp(
        "npu_qkv_rms_norm_rope_cache",
        "QkvRmsNormRopeCache",
        qkv_rms_norm_rope_cache,
        outputs=(3, 4, 5),
        writes={"q_out": 0, "k_cache": 1, "v_cache": 2},
    ),
    *_rope_rows("torchair::npu_rope_quant_kvcache_functional", copies=_CACHES),
    *_rope_rows("torchair::npu_dequant_rope_quant_kvcache_functional", copies=_CACHES),
    *_rope_rows("npu_rope_quant_kvcache", writes=_ROPE_WRITES),
    *_rope_rows("npu_dequant_rope_quant_kvcache", writes=_ROPE_WRITES),
)
PLAIN = {"npu_gather_backward": gather_backward, "npu_prefetch": prefetch}
_KV_CACHE = ({"k_cache": 2, "ckv_cache": 3}, ("k_cache", "ckv_cache", 0, 1))
_ROPE_CACHE = (_ROPE_WRITES, (0, 1, 2, "k_cache", "v_cache"))
IN_PLACE = (
    InPlaceOp("scatter_update_", "scatter_update", {"self": 0}, ("self",), scatter_update_here),
    InPlaceOp("npu_quant_scatter_", "npu_quant_scatter", {"self": 0}, ("self",), quant_scatter_here),
    InPlaceOp(
        "npu_scatter_nd_update_", "npu_scatter_nd_update", {"self": 0}, ("self",), scatter_nd_update_here
    ),
    InPlaceOp("npu_scatter_pa_kv_cache", "npu_scatter_pa_kv_cache_functional", _PAGE_WRITES, ()),
    InPlaceOp("npu_kv_rmsnorm_rope_cache", "npu_kv_rmsnorm_rope_cache_v2_functional", *_KV_CACHE),
    InPlaceOp(
        "npu_inference::npu_kv_rmsnorm_rope_cache", "npu_kv_rmsnorm_rope_cache_v2_functional", *_KV_CACHE
    ),
    InPlaceOp(
        "npu_qkv_rms_norm_rope_cache",
        "npu_qkv_rms_norm_rope_cache_functional",
        {"q_out": 3, "k_cache": 4, "v_cache": 5},
        (0, 1, 2),
    ),
    InPlaceOp("npu_rope_quant_kvcache", "torchair::npu_rope_quant_kvcache_functional", *_ROPE_CACHE),
    InPlaceOp(
        "npu_dequant_rope_quant_kvcache", "torchair::npu_dequant_rope_quant_kvcache_functional", *_ROPE_CACHE
    ),
)
