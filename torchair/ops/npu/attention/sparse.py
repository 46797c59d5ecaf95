"""Compute attention to selected keys: an indexer that scores all keys and lists the best, and attention that
sees only listed blocks of keys, also with caches that are quantized by tiles.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.core.errors import BadAttribute
from torchair.ops.npu.attention.flash import statistics
from torchair.ops.npu.attention.infer_attention import (
    BAND_FROM_END,
    CAUSAL_FROM_END,
    GIVEN_AND_BAND,
    key_tokens,
    query_tokens,
    seen_by,
)
from torchair.ops.npu.common.attention_core import Heads, attend_with_lse, with_sink
from torchair.ops.npu.common.op_spec import NpuOp, made
from torchair.ops.npu.common.sequences import PACKED, Tokens, both, from_heads, side_by_side, to_heads
from torchair.ops.numerics.formats import FP4, HIF8, ir_type, load, wide

# Value of "no limit" in these ops.
_FURTHEST = 9223372036854775807
PAGES = "PA_BSND"


def sparse_keys(x, layout, table):
    """Return keys [B, rows, N, D], packed, or in pages [blocks, rows, N, D], as [batch, heads, rows, dim]."""
    if layout == PAGES:
        return x[table.to(torch.int64).clamp(min=0)].flatten(1, 2).transpose(1, 2)
    return to_heads(x, layout, 0)


def places(query_layout, key_layout, rows, key, lengths) -> tuple[Tokens, Tokens]:
    """Return the positions of queries and keys; the keys of packed queries are concatenated."""
    queries = query_tokens(query_layout, rows, lengths[0], None, key.device)
    in_pages = key_layout not in PACKED
    layout = query_layout if in_pages else key_layout
    keys = key_tokens(layout, key.shape[0], key.shape[2], lengths[1], None, key.device, in_pages)
    return queries, keys


def allowed(queries: Tokens, keys: Tokens, sparse):
    """Return the visible positions by lengths and mode: all (0), or causal (3) or a band (4) from the end."""
    if sparse[2] not in (GIVEN_AND_BAND, CAUSAL_FROM_END, BAND_FROM_END):
        raise BadAttribute("attention to selected keys supports sparse_mode 0, 3 and 4", got=str(sparse[2]))
    return seen_by(queries, keys, None, sparse, False)[0]


def listed_keys(indices, keys: Tokens, block):
    """Return where the list [G, N, rows, count] of a query contains the block of a key; -1 ends a list."""
    listed = torch.where((indices >= 0).cumprod(-1).bool(), indices.to(torch.int64), -1)
    blocks = -(-keys.position.shape[-1] // block)
    # The last column receives the entries that are not in a list.
    column = torch.where((listed >= 0) & (listed < blocks), listed, blocks)
    found = torch.zeros(*indices.shape[:-1], blocks + 1, dtype=torch.bool, device=indices.device)
    found = found.scatter(-1, column, True)
    number = (keys.position // block).clamp(0, blocks)[:, None, None, :]
    return found.gather(-1, number.expand(*found.shape[:-1], -1))


def sparse_heads(query, key, value, indices, table, lengths, *, scale, block, layouts, sparse):
    """Return the core's operands for [.., heads, dim] queries; unlisted key blocks are hidden."""
    entry, key_layout = layouts
    q = to_heads(query, entry, 0)
    k, v = (sparse_keys(x, key_layout, table) for x in (key, value))
    return listed_heads(q, k, v, indices, lengths, scale=scale, block=block, layouts=layouts, sparse=sparse)


def listed_heads(q, k, v, indices, lengths, *, scale, block, layouts, sparse) -> Heads:
    """Return the operands of the core for operands [batch, heads, rows, dim]."""
    entry, key_layout = layouts
    queries, keys = places(entry, key_layout, q.shape[2], k, lengths)
    if entry in PACKED and key_layout not in PACKED:
        k, v = side_by_side(k), side_by_side(v)
    seen = allowed(queries, keys, sparse)
    listed = listed_keys(to_heads(indices, entry, 0), keys, block)
    repeats = q.shape[1] // k.shape[1]
    listed = listed if k.shape[1] == 1 else listed.repeat_interleave(repeats, 1)
    dtype = q.dtype if q.dtype == k.dtype == v.dtype else torch.float32
    return Heads(q.to(dtype), k.to(dtype), v.to(dtype), None, both(seen, listed), False, scale)


def as_parts(x, heads, layout):
    """Return a statistic [B, N, S, 1] as [B, key heads, S, queries of a key head], packed [key
    heads, T, …].
    """
    made = x.squeeze(3).unflatten(1, (heads, -1)).transpose(2, 3)
    return (made.squeeze(0) if layout in PACKED else made).contiguous()


def with_rope(x, rope):
    """Append the rotary columns."""
    return x if rope is None else torch.cat((x, rope.to(x.dtype)), -1)


def sparse_flash_attention(
    query, key, value, sparse_indices, block_table, actual_seq_lengths_query, actual_seq_lengths_kv,
    query_rope, key_rope, *, scale_value, sparse_block_size=1, layout_query="BSND", layout_kv="BSND",
    sparse_mode=3, pre_tokens=_FURTHEST, next_tokens=_FURTHEST, attention_mode=0, return_softmax_lse=False,
):  # fmt: skip
    """Return (result, max, sum) of attention to listed key blocks; the value defaults to the key."""
    return sparse_flash_attention_with_sinks(
        query, key, value, sparse_indices, block_table, actual_seq_lengths_query, actual_seq_lengths_kv,
        query_rope, key_rope, None, scale_value=scale_value, sparse_block_size=sparse_block_size,
        layout_query=layout_query, layout_kv=layout_kv, sparse_mode=sparse_mode, pre_tokens=pre_tokens,
        next_tokens=next_tokens, return_softmax_lse=return_softmax_lse,
    )  # fmt: skip


def sparse_flash_attention_with_sinks(
    query, key, value, sparse_indices, block_table, actual_seq_lengths_query, actual_seq_lengths_kv,
    query_rope, key_rope, sinks, *, scale_value, sparse_block_size, layout_query, layout_kv, sparse_mode,
    pre_tokens, next_tokens, return_softmax_lse,
):  # fmt: skip
    """Compute sparse attention with one more logit per head."""
    heads = sparse_heads(
        with_rope(query, query_rope), with_rope(key, key_rope), key if value is None else value,
        sparse_indices, block_table, (actual_seq_lengths_query, actual_seq_lengths_kv), scale=scale_value,
        block=sparse_block_size, layouts=(layout_query, layout_kv),
        sparse=(pre_tokens, next_tokens, sparse_mode),
    )  # fmt: skip
    out, lse = attend_with_lse(heads)
    out = out if sinks is None else with_sink(out, lse, sinks)
    made = from_heads(out, layout_query).to(query.dtype)
    if not return_softmax_lse:
        return made, *(query.new_empty(0, dtype=torch.float32) for _ in range(2))
    key_heads = heads.key.shape[1]
    return made, *(as_parts(x, key_heads, layout_query) for x in statistics(heads, lse, sinks))


def tiles(stored, scale, rope_width, tile_size, like, kind=None):
    """Return (values, rotary part) of rows of bytes: quantized columns, the rotary part in the query's dtype
    and, if no scale is given, a float32 scale for each tile of columns.
    """
    wide_rope = rope_width * like.dtype.itemsize
    raw = stored.view(torch.uint8)
    tail = raw.shape[-1] - wide_rope
    columns = tail if scale is not None else tail * tile_size // (tile_size + 4)
    rope = raw[..., columns : columns + wide_rope].contiguous().view(like.dtype)
    data = raw[..., :columns].contiguous()
    values = load(data) if kind == HIF8 else wide(data.view(stored.dtype))
    if scale is None:
        scale = raw[..., columns + wide_rope :].contiguous().view(torch.float32)
    return values * wide(scale).repeat_interleave(tile_size, -1), rope


def kv_quant_sparse_flash_attention(
    query, key, value, sparse_indices, key_dequant_scale, value_dequant_scale, block_table,
    actual_seq_lengths_query, actual_seq_lengths_kv, *, scale_value, key_quant_mode, value_quant_mode,
    sparse_block_size=1, layout_query="BSND", layout_kv="BSND", sparse_mode=3, pre_tokens=_FURTHEST,
    next_tokens=_FURTHEST, attention_mode=0, quant_scale_repo_mode=1, tile_size=128, rope_head_dim=64,
):  # fmt: skip
    """Compute sparse attention over a cache quantized by tiles, without values in rotary columns."""
    return kv_quant_sparse(
        query, key, value, sparse_indices, key_dequant_scale, value_dequant_scale, block_table,
        actual_seq_lengths_query, actual_seq_lengths_kv, scale_value=scale_value,
        sparse_block_size=sparse_block_size, layout_query=layout_query, layout_kv=layout_kv,
        sparse_mode=sparse_mode, pre_tokens=pre_tokens, next_tokens=next_tokens,
        quant_scale_repo_mode=quant_scale_repo_mode, tile_size=tile_size, rope_head_dim=rope_head_dim,
    )  # fmt: skip


def kv_quant_sparse(
    query, key, value, sparse_indices, key_dequant_scale, value_dequant_scale, block_table,
    actual_seq_lengths_query, actual_seq_lengths_kv, *, scale_value, sparse_block_size, layout_query,
    layout_kv, sparse_mode, pre_tokens, next_tokens, quant_scale_repo_mode, tile_size, rope_head_dim,
    kind=None,
):  # fmt: skip
    """Compute `kv_quant_sparse_flash_attention`; `kind` is the type of bytes that need a type code."""
    has_tile_scales = quant_scale_repo_mode == 1
    k, v = (
        tiles(
            sparse_keys(x, layout_kv, block_table),
            None if has_tile_scales else sparse_keys(scale, layout_kv, block_table),
            rope_head_dim, tile_size, query, kind,
        )
        for x, scale in ((key, key_dequant_scale), (value, value_dequant_scale))
    )  # fmt: skip
    heads = listed_heads(
        to_heads(query, layout_query, 0), torch.cat((k[0], wide(k[1])), -1), v[0], sparse_indices,
        (actual_seq_lengths_query, actual_seq_lengths_kv), scale=scale_value, block=sparse_block_size,
        layouts=(layout_query, layout_kv), sparse=(pre_tokens, next_tokens, sparse_mode),
    )  # fmt: skip
    return from_heads(attend_with_lse(heads)[0], layout_query).to(query.dtype)


# The indexer


def indexed(q, k, weights, lengths, *, layouts, count, sparse):
    """Return (best key positions, scores) [G, 1, rows, count] by Σ_heads weight · relu(q · k)."""
    entry, key_layout = layouts
    queries, keys = places(entry, key_layout, q.shape[2], k, lengths)
    k = side_by_side(k) if entry in PACKED and key_layout not in PACKED else k
    each = torch.relu(wide(q) @ wide(k).mT)
    scores = (each * wide(to_heads(weights.unsqueeze(-1), entry, 0))).sum(1, keepdim=True)
    seen = allowed(queries, keys, sparse)
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    # At least as many columns as requested.
    columns = scores.shape[-1]
    missing = count if type(columns) is not int else max(count - columns, 0)
    values, order = F.pad(scores, (0, missing), value=-torch.inf).sort(dim=-1, descending=True, stable=True)
    values, order = values[..., :count], order[..., :count]
    position = F.pad(keys.position, (0, missing), value=-1)[:, None, None, :]
    found = position.expand(*order.shape[:-1], -1).gather(-1, order)
    return torch.where(values == -torch.inf, -1, found).to(torch.int32), values


def lightning_indexer(
    query, key, weights, actual_seq_lengths_query, actual_seq_lengths_key, block_table, *,
    layout_query="BSND", layout_key="BSND", sparse_count=2048, sparse_mode=3, pre_tokens=_FURTHEST,
    next_tokens=_FURTHEST, return_values=False,
):  # fmt: skip
    """Return (positions of each query's best keys, in descending order, padded with -1; their scores)."""
    found, values = indexed(
        to_heads(query, layout_query, 0), sparse_keys(key, layout_key, block_table), weights,
        (actual_seq_lengths_query, actual_seq_lengths_key), layouts=(layout_query, layout_key),
        count=sparse_count, sparse=(pre_tokens, next_tokens, sparse_mode),
    )  # fmt: skip
    values = from_heads(values, layout_query).to(query.dtype) if return_values else query.new_empty(0)
    return from_heads(found, layout_query).contiguous(), values.contiguous()


def quant_lightning_indexer(
    query, key, weights, query_dequant_scale, key_dequant_scale, actual_seq_lengths_query,
    actual_seq_lengths_key, block_table, *, query_quant_mode, key_quant_mode, layout_query="BSND",
    layout_key="BSND", sparse_count=2048, sparse_mode=3, pre_tokens=_FURTHEST, next_tokens=_FURTHEST,
):  # fmt: skip
    """Run `lightning_indexer` on small floats with a scale for every token and head."""
    q = wide(to_heads(query, layout_query, 0))
    k = wide(sparse_keys(key, layout_key, block_table))
    found, _ = indexed(
        q * wide(to_heads(query_dequant_scale.unsqueeze(-1), layout_query, 0)),
        k * wide(sparse_keys(key_dequant_scale.unsqueeze(-1), layout_key, block_table)), weights,
        (actual_seq_lengths_query, actual_seq_lengths_key), layouts=(layout_query, layout_key),
        count=sparse_count, sparse=(pre_tokens, next_tokens, sparse_mode),
    )  # fmt: skip
    return from_heads(found, layout_query).contiguous()


def _loaded(x, code):
    return load(x) if ir_type(code) == HIF8 else x


def _needs(*names):
    """Return a predicate: bytes need a type code."""
    return lambda given: any(ir_type(given[name]) in (HIF8, *FP4) for name in names)


_KV_HINTS = ("attention_mode", "key_quant_mode", "value_quant_mode")
ROWS = (
    NpuOp(
        "npu_sparse_flash_attention", "", sparse_flash_attention_with_sinks, ignored=("attention_mode",),
        when=lambda given: given["sinks"] is not None or given["value"] is None,
    ),
    NpuOp("npu_sparse_flash_attention", "SparseFlashAttention", sparse_flash_attention, ignored=("sinks",)),
    NpuOp(
        "npu_kv_quant_sparse_flash_attention", "", kv_quant_sparse,
        {"kind": made(lambda key, value: ir_type(key), "key_dtype", "value_dtype")},
        when=_needs("key_dtype", "value_dtype"), ignored=_KV_HINTS,
    ),
    NpuOp(
        "npu_kv_quant_sparse_flash_attention", "KvQuantSparseFlashAttention",
        kv_quant_sparse_flash_attention, ignored=("key_dtype", "value_dtype"),
    ),
    NpuOp("npu_lightning_indexer", "LightningIndexer", lightning_indexer, {"return_values": "return_value"}),
    NpuOp(
        "npu_quant_lightning_indexer", "", quant_lightning_indexer,
        {"query": made(_loaded, "query", "query_dtype"), "key": made(_loaded, "key", "key_dtype")},
        when=_needs("query_dtype", "key_dtype"),
    ),
    NpuOp(
        "npu_quant_lightning_indexer", "QuantLightningIndexer", quant_lightning_indexer,
        ignored=("query_dtype", "key_dtype"),
    ),
)  # fmt: skip
