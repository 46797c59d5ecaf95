"""Compute attention for inference: prompts, single steps and mixtures, over dense, packed or paged keys, with
quantized caches, rotary parts, shared prefixes and merged partial results.

Arithmetic is float32 if data are dequantized, otherwise that of the fused kernel, which sums in float32.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from torchair.core import dtypes
from torchair.core.errors import BadAttribute, UnsupportedOp
from torchair.core.kernel_params import Ints
from torchair.core.torch_private.fake.fake_tensors import statically_known_true
from torchair.ops.npu.common.attention_core import Heads, attend, attend_quantized, attend_with_lse, with_sink
from torchair.ops.npu.common.op_spec import NpuOp, made
from torchair.ops.npu.common.packing import operand
from torchair.ops.npu.common.sequences import (
    FAR,
    PACKED,
    Tokens,
    after_prefix,
    band,
    both,
    counted,
    counted_side_by_side,
    entry_and_leaving,
    fitted,
    from_heads,
    from_pages,
    numbers,
    packed,
    plain,
    side_by_side,
    to_heads,
    tokens_that_are,
)
from torchair.ops.npu.dense.quant import unpacked_scale
from torchair.ops.numerics.formats import (
    FP4,
    FP32,
    HIF8,
    INT8,
    ir_type,
    load,
    power_of_two,
    static,
    unpack,
    wide,
)

# Modes of the scales of a cache.
CHANNELS, TOKENS, HEADS, TOKENS_AND_HEADS, PAGED_TOKENS, PAGED_TOKENS_AND_HEADS, TOKEN_GROUPS = range(7)
# Modes of the mask.
GIVEN_AND_BAND, GIVEN, CAUSAL, CAUSAL_FROM_END, BAND_FROM_END = range(5)


# Keys and values


def stored_heads(x, layout, heads, table):
    """Return keys or values as [batch, heads, rows, dim], in their stored type."""
    return to_heads(x, layout, heads) if table is None else from_pages(x, table, heads)


class Scale(NamedTuple):
    """Dequantization of a cache: (x + offset) · scale, broadcast as the mode defines."""

    scale: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    mode: int = CHANNELS


class Prefix(NamedTuple):
    """Keys and values that all sequences share, and their number."""

    key: torch.Tensor | None = None
    value: torch.Tensor | None = None
    length: Any = None


class Rope(NamedTuple):
    """Rotary columns of queries and keys, and the scale of the keys."""

    query: torch.Tensor | None = None
    key: torch.Tensor | None = None
    scale: torch.Tensor | None = None


AS_IT_IS, NO_PREFIX, NO_ROPE = Scale(), Prefix(), Rope()


def dequantized(x, by: Scale, table):
    """Return (x + offset) · scale of [batch, heads, rows, dim]."""
    if by.scale is None:
        return x
    x = wide(x)
    x = x if by.offset is None else x + spread(wide(by.offset), x, by.mode, table)
    return x * spread(wide(by.scale), x, by.mode, table)


def spread(part, x, mode, table):
    """Broadcast the scales or offsets of a mode to x [batch, heads, rows, dim]."""
    heads, rows, dim = x.shape[1:]
    if mode in (PAGED_TOKENS, PAGED_TOKENS_AND_HEADS):
        pages = part[table.to(torch.int64).clamp(min=0)]
        if mode == PAGED_TOKENS:
            part, mode = pages.flatten(1, 2), TOKENS
        else:
            part, mode = pages.transpose(1, 2).flatten(2, 3), TOKENS_AND_HEADS
    if part.ndim == 0 or (part.ndim == 1 and part.shape[0] == 1):
        return part
    if mode == CHANNELS:
        return part.reshape(1, heads, 1, dim)
    if mode == TOKENS:
        tokens = part.unsqueeze(0).flatten(0, -2)
        return F.pad(tokens, (0, rows - tokens.shape[-1]))[:, None, :, None]
    if mode == HEADS:
        return part.reshape(1, heads, 1, 1)
    if mode == TOKENS_AND_HEADS:
        # The scales of packed tokens are [tokens, heads].
        part = part.mT if part.ndim == 2 else part
        tokens = part.unsqueeze(0).flatten(0, -3)
        return F.pad(tokens, (0, rows - tokens.shape[-1])).unsqueeze(-1)
    groups = part.unsqueeze(0).flatten(0, -4)
    groups = F.pad(groups, (0, 0, 0, rows - groups.shape[-2]))
    return groups.repeat_interleave(dim // groups.shape[-1], -1)


def half(scale, offset, mode, index):
    """Return the scale of keys (0) or values (1) if one tensor holds both."""
    return Scale(scale[index], None if offset is None else offset[index], mode)


def with_prefix(x, prefix, layout, heads, by: Scale):
    """Add a prefix that all sequences share before the rows of each."""
    if prefix is None:
        return x
    if by.scale is not None and by.mode not in (CHANNELS, HEADS):
        raise UnsupportedOp("a shared prefix with scales per token", near="scales per channel or per head")
    first = dequantized(stored_heads(prefix, layout, heads, None), by, None)
    return torch.cat((first.expand(x.shape[0], -1, -1, -1).to(x.dtype), x), 2)


# Queries


def query_scale(part, layout):
    """Return one scale per token and head, as [batch, heads, rows, 1]."""
    layout = "BSND" if layout == "BSH" else layout
    rank = 4 if layout in ("BSND", "BNSD") else 3
    return to_heads(part.unsqueeze(-1) if part.ndim < rank else part, layout, 0)


def joined(x, rope):
    """Append the columns of the rotary part."""
    same = x.dtype == rope.dtype and x.dtype.itemsize > 1
    return torch.cat((x, rope) if same else (wide(x), wide(rope)), -1)


# Visibility


def query_tokens(layout, rows, lengths, padding, device):
    """Return the positions of the rows of queries."""
    lengths = numbers(lengths, device)
    if layout in PACKED:
        return packed(rows, torch.full((1,), rows, device=device) if lengths is None else lengths)
    return plain(rows, device) if lengths is None else counted(rows, lengths, padding)


def key_tokens(layout, batch, rows, lengths, padding, device, is_paged):
    """Return the positions of the rows of keys; the lengths of paged sequences are never cumulative."""
    lengths = numbers(lengths, device)
    if layout in PACKED:
        if is_paged:
            return counted_side_by_side(batch, rows, lengths, device)
        return packed(rows, torch.full((1,), rows, device=device) if lengths is None else lengths)
    return plain(rows, device) if lengths is None else counted(rows, lengths, padding)


def one_by_one(q, k, v, queries: Tokens, lengths):
    """Return packed queries with one token per sequence as a batch of rows, each with its own keys.

    The alternative, all keys concatenated, would score every query with the keys of all sequences.
    """
    assert queries.sequence is not None and queries.valid is not None, "packed queries have a sequence"
    batch, rows = k.shape[0], k.shape[2]
    sequence = queries.sequence.squeeze(0).clamp(max=batch - 1)
    counts = numbers(lengths, q.device)
    counts = torch.full((1,), rows, device=q.device) if counts is None else counts
    keys = counted(rows, counts.expand(batch)[sequence])
    alone = Tokens(*(x.t() for x in (queries.position, queries.length, queries.sequence, queries.valid)))
    return q.permute(2, 1, 0, 3), k[sequence], v[sequence], alone, keys


def four_dims(mask, rows):
    """Return [S, S] and [B, S, S] masks as [B, 1, S, S]; a 2-D mask of one query row is one per
    batch entry.
    """
    if type(rows) is int and rows == 1 and mask.ndim == 2:
        return mask[:, None, None, :]
    return mask if mask.ndim != 3 else mask.unsqueeze(1)


def seen_by(queries: Tokens, keys: Tokens, mask, sparse, has_prefix):
    """Return (the visible positions or None, whether they are just causal from the top left)."""
    before, after, mode = sparse
    seen = tokens_that_are(queries, keys)
    rows = queries.position.shape[-1]
    if mode in (GIVEN_AND_BAND, GIVEN) and mask is not None:
        hidden = fitted(four_dims(mask.bool(), rows), queries, keys, True, has_prefix)
        seen = both(seen, ~hidden)
        if mode == GIVEN_AND_BAND:
            seen = both(seen, band(queries, keys, False, before, after))
    if mode == CAUSAL:
        if seen is None:
            return None, True
        seen = both(seen, band(queries, keys, False, FAR, 0))
    elif mode == CAUSAL_FROM_END and not (queries.sequence is None and type(rows) is int and rows == 1):
        seen = both(seen, band(queries, keys, True, FAR, 0))
    elif mode == BAND_FROM_END:
        seen = both(seen, band(queries, keys, True, before, after))
    return seen, False


def core(query, key, value, shift, mask, queries, keys, sparse, scale, has_prefix=False) -> Heads:
    """Return the operands of the attention core, all of one dtype."""
    seen, is_causal = seen_by(queries, keys, mask, sparse, has_prefix)
    if shift is not None:
        shift = fitted(four_dims(shift, 0), queries, keys, 0.0, has_prefix)
    if is_causal and shift is not None:
        seen, is_causal = band(queries, keys, False, FAR, 0), False
    dtype = query.dtype if query.dtype == key.dtype == value.dtype and query.dtype.itemsize > 1 else None
    query, key, value = (x if dtype else wide(x) for x in (query, key, value))
    return Heads(query, key, value, None if shift is None else shift.to(query.dtype), seen, is_causal, scale)


def finished(heads: Heads, sink, quantized, wants_lse):
    """Return (result [batch, heads, rows, dim], log-sum-exp or None). `quantized` defines how probabilities
    are stored: (scale, scale of the product, type of the values).
    """
    stored, back, kind = quantized
    wants_lse = wants_lse or sink is not None
    out, lse = attend_with_lse(heads) if wants_lse else (attend(heads), None)
    if stored is not None:
        out = attend_quantized(heads, stored, kind)
        out = out / wide(stored) if back is None else out
    out = out if back is None else out * unpacked_scale(back)
    return out if sink is None or lse is None else with_sink(out, lse, sink), lse


def left_as(out, leaving, dtype, quant_scale, quant_offset):
    """Return the result in its layout and dtype, or quantized to int8."""
    if quant_scale is None:
        made = from_heads(out, leaving)
        # A cast allocates new memory, which is dense in dims of one element too.
        return made if made.dtype == dtype else made.to(dtype, memory_format=torch.contiguous_format)
    scale, offset = (
        None if x is None else spread(x, out, CHANNELS, None) for x in (quant_scale, quant_offset)
    )
    return from_heads(static(out, scale, offset, INT8), leaving)


def lse_as(lse, layout, like):
    """Return [B, N, S, 1], packed [T, N, 1]; an empty tensor if there is none."""
    if lse is None:
        return like.new_empty(0, dtype=torch.float32)
    return lse.squeeze(0).transpose(0, 1) if layout in PACKED else lse


# The ops


def infer(
    query, key, value, *, heads, kv_heads, layout, scale, sparse=(FAR, FAR, GIVEN_AND_BAND), shift=None,
    mask=None, lengths=(None, None), paddings=(None, None), table=None, query_scales=None, key_by=AS_IT_IS,
    value_by=AS_IT_IS, prefix=NO_PREFIX, rope=NO_ROPE, sink=None, score_scale=None, stored=(None, None),
    quant=(None, None), wants_lse=False, out_dtype=0,
):  # fmt: skip
    """Return (attention, log-sum-exp or an empty tensor).

    `lengths` and `paddings` belong to queries and keys. `stored` defines how probabilities are quantized, and
    the factor of their product with the values. `quant` defines how the result is quantized.
    """
    entry, leaving = entry_and_leaving(layout, query, heads)
    check_rank(query, value, table)
    kv_heads = kv_heads or heads
    read = functools.partial(stored_heads, layout=entry, heads=kv_heads, table=table)
    q, k, v = to_heads(query, entry, heads), read(key), read(value)
    kind, own, batch = v.dtype, k.shape[2], k.shape[0]
    k = with_prefix(dequantized(k, key_by, table), prefix.key, entry, kv_heads, key_by)
    v = with_prefix(dequantized(v, value_by, table), prefix.value, entry, kv_heads, value_by)
    if rope.query is not None:
        if prefix.key is not None:
            raise UnsupportedOp("a shared prefix together with rotary parts", next="omit one of them")
        # Both parts of a quantized query share its scale and the scale of the key.
        turned = dequantized(read(rope.key), Scale(rope.scale), table)
        turned = turned if query_scales is None else dequantized(turned, key_by, table)
        q, k = joined(q, to_heads(rope.query, entry, heads)), joined(k, turned)
    q = q if query_scales is None else wide(q) * query_scale(query_scales, entry)
    q = q if score_scale is None else wide(q) * unpacked_scale(score_scale)
    queries = query_tokens(entry, q.shape[2], lengths[0], paddings[0], q.device)
    in_pages = entry in PACKED and table is not None
    alone = in_pages and shift is None and mask is None and statically_known_true(q.shape[2] <= batch)
    if alone:
        q, k, v, queries, keys = one_by_one(q, k, v, queries, lengths[1])
    else:
        keys = key_tokens(entry, batch, own, lengths[1], paddings[1], q.device, table is not None)
        k, v = (side_by_side(k), side_by_side(v)) if in_pages else (k, v)
    if prefix.key is not None:
        keys = after_prefix(prefix_tokens(k.shape[2] - own, prefix.length, q.device), keys, batch)
    made = core(q, k, v, shift, mask, queries, keys, sparse, scale, prefix.key is not None)
    out, lse = finished(made, sink, (*stored, kind), wants_lse)
    if alone:
        out, lse = (None if x is None else x.permute(2, 1, 0, 3) for x in (out, lse))
    dtype = result_dtype(query, rope.query, out_dtype)
    return left_as(out, leaving, dtype, *quant), lse_as(lse if wants_lse else None, entry, query)


def check_rank(query, value, table):
    """Check that values have the rank of the query, and pages 3 to 5 dims."""
    allowed = (3, 4, 5) if table is not None else (query.ndim,)
    if value.ndim not in allowed:
        wanted = " or ".join(str(rank) for rank in allowed)
        raise BadAttribute(
            f"values {'in pages' if table is not None else 'for this query'} must have {wanted} dims",
            got=f"query {list(query.shape)}   value {list(value.shape)}",
        )


def prefix_tokens(rows, length, device):
    """Return the positions of the rows of a prefix."""
    lengths = numbers(length, device)
    return plain(rows, device) if lengths is None else counted(rows, lengths)


def result_dtype(query, rope, out_dtype):
    """Return the query's dtype; for small queries the requested one, that of the rotary part, or float16."""
    if out_dtype and query.dtype.itemsize != 2:
        return dtypes.to_torch(out_dtype)
    if query.dtype.itemsize > 1:
        return query.dtype
    return torch.float16 if rope is None else rope.dtype


def from_the_start(op, *starts) -> None:
    """Check the first positions of a shift made on the device: without such a shift they must be 0."""
    if any(start for listed in starts for start in listed or ()):
        raise UnsupportedOp(
            f"{op} with positions that do not begin at 0",
            got=f"q_start_idx {starts[0]}, kv_start_idx {starts[1]}",
            near="0 is supported; other values are for shifts that the device computes (pse_type 2, 3)",
            next="pass the shift as a tensor",
        )


def fused_infer_attention_score(
    query, key, value, pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv, dequant_scale1,
    quant_scale1, dequant_scale2, quant_scale2, quant_offset2, antiquant_scale, antiquant_offset, block_table,
    query_padding_size, kv_padding_size, key_antiquant_scale, key_antiquant_offset, value_antiquant_scale,
    value_antiquant_offset, key_shared_prefix, value_shared_prefix, actual_shared_prefix_len, query_rope,
    key_rope, key_rope_antiquant_scale, dequant_scale_query, learnable_sink, q_start_idx: Ints | None,
    kv_start_idx: Ints | None, *,
    num_heads, scale=1.0, pre_tokens=FAR, next_tokens=FAR, input_layout="BSH", num_key_value_heads=0,
    sparse_mode=0, inner_precise=0, block_size=0, antiquant_mode=0, softmax_lse_flag=False,
    key_antiquant_mode=0, value_antiquant_mode=0, query_quant_mode=0, pse_type=0, out_dtype=0,
):  # fmt: skip
    """Return (attention, log-sum-exp or an empty tensor) with all features of inference."""
    from_the_start("FusedInferAttentionScore", q_start_idx, kv_start_idx)
    if pse_type not in (0, 1):
        raise UnsupportedOp("FusedInferAttentionScore that computes its own shift", near="pse_type 0 and 1")
    (key,), (value,) = key, value
    key_by = Scale(key_antiquant_scale, key_antiquant_offset, key_antiquant_mode)
    value_by = Scale(value_antiquant_scale, value_antiquant_offset, value_antiquant_mode)
    if antiquant_scale is not None:
        key_by, value_by = (half(antiquant_scale, antiquant_offset, antiquant_mode, i) for i in (0, 1))
    return infer(
        query, key, value, heads=num_heads, kv_heads=num_key_value_heads, layout=input_layout, scale=scale,
        sparse=(pre_tokens, next_tokens, sparse_mode), mask=atten_mask,
        shift=pse_shift if pse_shift is None or pse_type == 0 else pse_shift * scale,
        lengths=(actual_seq_lengths, actual_seq_lengths_kv), paddings=(query_padding_size, kv_padding_size),
        table=block_table, query_scales=dequant_scale_query, key_by=key_by, value_by=value_by,
        prefix=Prefix(key_shared_prefix, value_shared_prefix, actual_shared_prefix_len),
        rope=Rope(query_rope, key_rope, key_rope_antiquant_scale), sink=learnable_sink,
        score_scale=dequant_scale1, stored=(quant_scale1, dequant_scale2),
        quant=(quant_scale2, quant_offset2), wants_lse=softmax_lse_flag, out_dtype=out_dtype,
    )  # fmt: skip


def prompt_flash_attention(
    query, key, value, pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv, deq_scale1,
    quant_scale1, deq_scale2, quant_scale2, quant_offset2, *, num_heads, scale_value=1.0,
    pre_tokens=214748647, next_tokens=0, input_layout="BSH", num_key_value_heads=1, sparse_mode=0,
    inner_precise=1,
):  # fmt: skip
    """Compute attention over whole prompts."""
    return infer(
        query, key, value, heads=num_heads, kv_heads=num_key_value_heads, layout=input_layout,
        scale=scale_value, sparse=(pre_tokens, next_tokens, sparse_mode), shift=pse_shift, mask=atten_mask,
        lengths=(actual_seq_lengths, actual_seq_lengths_kv), score_scale=deq_scale1,
        stored=(quant_scale1, deq_scale2), quant=(quant_scale2, quant_offset2),
    )[0]  # fmt: skip


def incre_flash_attention(
    query, key, value, pse_shift, atten_mask, actual_seq_lengths, dequant_scale1, quant_scale1,
    dequant_scale2, quant_scale2, quant_offset2, antiquant_scale, antiquant_offset, block_table,
    kv_padding_size, *, num_heads, scale_value=1.0, input_layout="BSH", num_key_value_heads=1, block_size=0,
    inner_precise=1,
):  # fmt: skip
    """Compute attention of one query row per sequence; the lengths are those of keys."""
    (key,), (value,) = key, value
    key_by, value_by = (
        Scale() if antiquant_scale is None else half(antiquant_scale, antiquant_offset, CHANNELS, i)
        for i in (0, 1)
    )
    return infer(
        query, key, value, heads=num_heads, kv_heads=num_key_value_heads, layout=input_layout,
        scale=scale_value, sparse=(FAR, FAR, GIVEN), shift=pse_shift,
        mask=None if atten_mask is None else atten_mask.reshape(atten_mask.shape[0], 1, 1, -1),
        lengths=(None, actual_seq_lengths), paddings=(None, kv_padding_size), table=block_table,
        key_by=key_by, value_by=value_by, score_scale=dequant_scale1, stored=(quant_scale1, dequant_scale2),
        quant=(quant_scale2, quant_offset2),
    )[0]  # fmt: skip


def attention_update(lse, go, *, update_type, sp):
    """Return (Σ part · exp(lse of the part - L), L) with L the log-sum-exp of all parts."""
    logs = torch.stack([wide(part) for part in lse])
    total = torch.logsumexp(logs, 0)
    weights = torch.where(total == -torch.inf, 0.0, torch.exp(logs - total))
    parts = torch.stack([wide(part) for part in go])
    out = (parts * weights.unsqueeze(-1)).sum(0)
    return out.to(go[0].dtype), total


# Rows


def _listed(x):
    return [x]


def _loaded(x, code):
    """Return the values of data with a type code."""
    kind = ir_type(code)
    if x is None or kind not in (*FP4, HIF8):
        return x
    return load(x) if kind == HIF8 else unpack(x, kind)


def _loaded_scale(x, code):
    return power_of_two(x) if x is not None and x.dtype == torch.uint8 else x


def _needs_codes(given):
    """Return whether data need a type code."""
    names = ("query_dtype", "key_dtype", "value_dtype", "query_rope_dtype", "key_rope_dtype")
    return any(ir_type(given[name]) in (*FP4, HIF8) for name in names)


def _out_dtype(code):
    kind = 0 if code is None else ir_type(code)
    if code is not None and kind == FP32:
        raise BadAttribute("out_dtype of attention must be float16 or bfloat16", got="float32")
    return kind


def _coded_out_dtype(query_code, rope, code):
    """Return the result dtype if the query's own dtype does not define it."""
    if code is not None or ir_type(query_code) != HIF8:
        return _out_dtype(code)
    return dtypes.to_ge(torch.float16 if rope is None else rope.dtype)


_LISTED = {"key": made(_listed, "key"), "value": made(_listed, "value")}
_HELD = {"key": operand("key"), "value": operand("value")}
_HELD_PREFIX = {name: operand(name) for name in ("key_shared_prefix", "value_shared_prefix")}
_V2 = _LISTED | {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "key_antiquant_scale": "dequant_scale_key",
    "key_antiquant_offset": "dequant_offset_key",
    "value_antiquant_scale": "dequant_scale_value",
    "value_antiquant_offset": "dequant_offset_value",
    "key_rope_antiquant_scale": "dequant_scale_key_rope",
    "quant_scale1": "quant_scale_p",
    "quant_scale2": "quant_scale_out",
    "quant_offset2": "quant_offset_out",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "key_antiquant_mode": "key_quant_mode",
    "value_antiquant_mode": "value_quant_mode",
    "softmax_lse_flag": "return_softmax_lse",
    "out_dtype": made(_out_dtype, "out_dtype"),
}
_CODES = tuple(
    f"{name}_dtype"
    for name in (
        "query", "key", "value", "query_rope", "key_rope", "key_shared_prefix", "value_shared_prefix",
        "dequant_scale_query", "dequant_scale_key", "dequant_scale_value", "dequant_scale_key_rope",
    )
)  # fmt: skip
# Data of types that torch lacks are decoded before the call.
_CODED: dict[str, Any] = _V2 | {
    "query": made(_loaded, "query", "query_dtype"),
    "key": made(lambda x, code: [_loaded(x, code)], "key", "key_dtype"),
    "value": made(lambda x, code: [_loaded(x, code)], "value", "value_dtype"),
    "query_rope": made(_loaded, "query_rope", "query_rope_dtype"),
    "key_rope": made(_loaded, "key_rope", "key_rope_dtype"),
    "key_antiquant_scale": made(_loaded_scale, "dequant_scale_key", "dequant_scale_key_dtype"),
    "value_antiquant_scale": made(_loaded_scale, "dequant_scale_value", "dequant_scale_value_dtype"),
    "out_dtype": made(_coded_out_dtype, "query_dtype", "query_rope", "out_dtype"),
}
_PROMPT = {
    "inner_precise": made(lambda mode: 0 if mode >= 10 else 1, "sparse_mode"),
    "sparse_mode": made(lambda mode: mode % 10, "sparse_mode"),
}
_FUSED = ("FusedInferAttentionScore", fused_infer_attention_score)
ROWS = (
    *(
        NpuOp(f"{space}::npu_fused_infer_attention_score", *_FUSED, _LISTED, holds=_HELD | _HELD_PREFIX)
        for space in ("npu", "air")
    ),
    *(
        row
        for space in ("npu", "air")
        for row in (
            NpuOp(
                f"{space}::npu_fused_infer_attention_score_v2", "", fused_infer_attention_score, _CODED,
                when=_needs_codes, ignored=_CODES,
            ),
            NpuOp(f"{space}::npu_fused_infer_attention_score_v2", *_FUSED, _V2, holds=_HELD, ignored=_CODES),
        )
    ),
    NpuOp(
        "npu_prompt_flash_attention", "PromptFlashAttention", prompt_flash_attention, _PROMPT,
        ignored=("padding_mask",),
    ),
    NpuOp(
        "npu_incre_flash_attention", "IncreFlashAttention", incre_flash_attention, _LISTED,
        holds=_HELD, ignored=("padding_mask",),
    ),
    NpuOp(
        "npu_attention_update", "AttentionUpdate", attention_update,
        {"go": "local_out", "sp": made(len, "lse")},
    ),
)  # fmt: skip
