"""Compute linear attention by the gated delta rule, and stateful short causal convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.ops.npu.attention.cache import put_tokens
from torchair.ops.npu.common.groups import COUNTS, local_rows
from torchair.ops.npu.common.op_spec import InPlaceOp, NpuOp, made
from torchair.ops.numerics.delta_rule import delta_rule
from torchair.ops.numerics.formats import wide


def sequences(lengths, tokens, device):
    """Return (sequence of every token, its position there); without lengths, all tokens are one sequence."""
    if lengths is None:
        position = torch.arange(tokens, device=device)
        return torch.zeros_like(position), position
    return local_rows(lengths, tokens, COUNTS)


def run_delta_rule(query, key, value, beta, state, g, gk, scale, first, source, target):
    """Run the delta rule in float32; results have the dtype of the values. Heads of values share
    those of keys.
    """
    heads, share = value.shape[1], value.shape[1] // key.shape[1]
    q, k = (part.float().repeat_interleave(share, 1) for part in (query, key))
    decay = q.new_ones(q.shape[0], heads, 1, 1)
    decay = decay if g is None else decay * g.float().exp()[..., None, None]
    decay = decay if gk is None else decay * gk.float().exp().unsqueeze(-2)
    strength = q.new_ones(q.shape[0], heads, 1) if beta is None else beta.float().unsqueeze(-1)
    indices = [part.to(torch.int64) for part in (source, target)]
    out, states = delta_rule(q * scale, k, value.float(), strength, decay, state.float(), first, *indices)
    return out.to(value.dtype), states.to(state.dtype)


def recurrent_gated_delta_rule(
    query, key, value, beta, state, actual_seq_lengths, ssm_state_indices, g, gk, num_accepted_tokens, *,
    scale_value=1.0,
):  # fmt: skip
    """Return (outputs, states). Each sequence starts from the state of its first token's slot, or of the slot
    of its last accepted token; every token stores its state in its own slot.
    """
    tokens = query.shape[0]
    ids, position = sequences(actual_seq_lengths, tokens, query.device)
    slots = torch.arange(tokens, device=query.device) if ssm_state_indices is None else ssm_state_indices
    start = torch.arange(tokens, device=query.device) - position
    if num_accepted_tokens is not None:
        start = start + num_accepted_tokens.to(torch.int64)[ids] - 1
    return run_delta_rule(
        query, key, value, beta, state, g, gk, scale_value, position == 0, slots[start], slots
    )


def chunk_gated_delta_rule(query, key, value, beta, initial_state, actual_seq_lengths, g, *, scale_value=1.0):
    """Return (outputs, final state of each sequence)."""
    tokens = query.shape[0]
    ids, position = sequences(actual_seq_lengths, tokens, query.device)
    count = 1 if actual_seq_lengths is None else actual_seq_lengths.shape[0]
    if initial_state is None:
        shape = (count, value.shape[1], value.shape[2], key.shape[2])
        initial_state = query.new_zeros(shape, dtype=torch.float32)
    return run_delta_rule(
        query, key, value, beta, initial_state, g, None, scale_value, position == 0, ids, ids
    )


# Convolutions

ACTIVATIONS = {"None": 0, "none": 0, "silu": 1, "swish": 2}
CONV_MODES = {"default": 0, "pangu": 1}


def rows_at(x, history, starts, ids, position):
    """Return row `position` of each sequence; negatives index its history [B, H rows, columns]."""
    history_rows = history.shape[1]
    inside = x[(starts[ids] + position).clamp(0, x.shape[0] - 1)]
    before = history[ids, (history_rows + position).clamp(0, history_rows - 1)]
    return torch.where((position >= 0).unsqueeze(-1), inside, before)


def history_of(conv_states, lines, taps, accepted, computed, mode):
    """Return the rows before each sequence: the last rows of its line, or those up to the last accepted
    token; zeros for a new sequence.
    """
    history_rows, length = taps - 1, conv_states.shape[1]
    offset = torch.arange(history_rows, device=conv_states.device)
    if accepted is None:
        history = conv_states[lines][:, length - history_rows :]
    else:
        history = conv_states[lines.unsqueeze(1), accepted.to(torch.int64).unsqueeze(1) - 1 + offset]
    for known in (computed, mode):
        if known is not None:
            history = torch.where((known == 0).reshape(-1, 1, 1), 0, history)
    return history


def causal_conv(
    x, weight, conv_states, query_start_loc, cache_indices, initial_state_mode, bias, num_accepted_tokens,
    num_computed_tokens, block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx,
    *, activation_mode=0, pad_slot_id=-1, run_mode=0, max_query_len=-1, residual_connection=1, block_size=128,
    conv_mode=0,
):  # fmt: skip
    """Return (states, y): a depth-wise causal convolution along each sequence that continues from its state.

    `cache_indices` selects the line with the state of a sequence; `pad_slot_id` there skips it. With block
    indices, a line belongs to a block, and the rows before the end of every block are stored in its line,
    too.
    """
    rows = x.flatten(0, -2)
    starts, lengths = _bounds(x, query_start_loc)
    total, taps = rows.shape[0], weight.shape[0]
    ids, position = local_rows(lengths, total, COUNTS)
    batch = torch.arange(lengths.shape[0], device=x.device)
    table = batch if cache_indices is None else cache_indices.to(torch.int64)
    in_blocks = table.ndim == 2
    source = table if not in_blocks else table[batch, initial_state_idx.to(torch.int64)]
    target = table if not in_blocks else table[batch, block_idx_last_scheduled_token.to(torch.int64)]
    skipped = source == pad_slot_id
    lines = torch.where(skipped, 0, source)
    history = history_of(
        conv_states, lines, taps, num_accepted_tokens, num_computed_tokens, initial_state_mode
    ).to(x.dtype)

    def at(where, sequence):
        return rows_at(rows, history, starts, sequence, where)

    y = torch.zeros_like(wide(rows))
    for tap in range(taps):
        y = y + wide(at(position + tap - taps + 1, ids)) * wide(weight[tap])
    y = y if bias is None else y + wide(bias)
    y = F.silu(y) if activation_mode else y
    y = y + wide(rows) if residual_connection else y
    if conv_mode == CONV_MODES["pangu"]:
        computed = 0 if num_computed_tokens is None else num_computed_tokens[ids]
        y = torch.where((position < taps - 1 - computed).unsqueeze(-1), 0.0, y)
    y = torch.where(skipped[ids].unsqueeze(-1), 0.0, y).to(x.dtype).reshape(x.shape)
    states = _kept_states(conv_states, lines, torch.where(skipped, -1, target), lengths, at, taps)
    if in_blocks:
        states = _kept_blocks(
            states, table, at, taps, block_size, num_computed_tokens, block_idx_first_scheduled_token,
            block_idx_last_scheduled_token, skipped,
        )  # fmt: skip
    return states, y


def _bounds(x, query_start_loc):
    """Return (first row, number of rows) of every sequence."""
    if query_start_loc is not None:
        bounds = query_start_loc.to(torch.int64)
        return bounds[:-1], bounds[1:] - bounds[:-1]
    batch, length = (x.shape[0], x.shape[1]) if x.ndim == 3 else (1, x.shape[0])
    starts = torch.arange(batch, device=x.device) * length
    return starts, torch.full_like(starts, length)


def _kept_states(conv_states, lines, target, lengths, at, taps):
    """Store the last rows of history and sequence in every line; older rows stay."""
    size = conv_states.shape[1]
    where = lengths.unsqueeze(1) - size + torch.arange(size, device=lengths.device)
    batch = torch.arange(lengths.shape[0], device=lengths.device).unsqueeze(1).expand(where.shape)
    rows = at(where.flatten(), batch.flatten()).unflatten(0, where.shape)
    known = (where >= 1 - taps).unsqueeze(-1)
    rows = torch.where(known, rows.to(conv_states.dtype), conv_states[lines])
    return put_tokens(conv_states, lambda line: [line], target, rows)


def _kept_blocks(states, table, at, taps, block_size, computed, first, last, skipped):
    """Store the rows before the end of each finished block in the last rows of its line."""
    batch, blocks = table.shape
    number = torch.arange(blocks, device=table.device)
    finished = (number >= first.unsqueeze(1)) & (number < last.unsqueeze(1)) & ~skipped.unsqueeze(1)
    begun = torch.zeros(batch, dtype=torch.int64, device=table.device) if computed is None else computed
    ends = (number + 1) * block_size - begun.to(torch.int64).unsqueeze(1)
    where = ends.unsqueeze(-1) - taps + 1 + torch.arange(taps - 1, device=table.device)
    sequence = torch.arange(batch, device=table.device).reshape(-1, 1, 1).expand(where.shape)
    rows = at(where.flatten().clamp(min=1 - taps), sequence.flatten()).unflatten(
        0, (batch * blocks, taps - 1)
    )
    slots = torch.where(finished, table, -1).flatten()
    older = states[slots.clamp(min=0)][:, : states.shape[1] - taps + 1]
    return put_tokens(states, lambda line: [line], slots, torch.cat((older, rows.to(states.dtype)), 1))


def masked_causal_conv1d(input, weight, mask):
    """Convolve [S, B, H] causally along S, depth-wise; positions that the mask [B, S] hides give 0."""
    taps, length = weight.shape[0], input.shape[0]
    padded = F.pad(wide(input), (0, 0, 0, 0, taps - 1, 0))
    y = torch.zeros_like(wide(input))
    for tap in range(taps):
        y = y + padded.narrow(0, tap, length) * wide(weight[tap])
    return (y if mask is None else torch.where(mask.t().unsqueeze(-1), y, 0.0)).to(input.dtype)


def _is_bare(given):
    """Return whether inputs are missing that the IR op requires and torch does not."""
    return any(given[name] is None for name in ("beta", "actual_seq_lengths", "ssm_state_indices"))


def _or(default):
    return lambda value: default if value is None else value


_SCALE = {"scale_value": made(_or(1.0), "scale")}
_CONV = {
    "activation_mode": made(lambda name: ACTIVATIONS[name or "None"], "activation"),
    "conv_mode": made(lambda name: CONV_MODES[name or "default"], "conv_mode"),
    "pad_slot_id": made(_or(-1), "pad_slot_id"),
    "run_mode": made(_or(0), "run_mode"),
    "residual_connection": made(_or(0), "residual_connection"),
    "max_query_len": made(_or(-1), "max_query_len"),
    "block_size": made(_or(128), "block_size"),
}


def _delta_rows(op, **kind):
    return (
        NpuOp(op, "", recurrent_gated_delta_rule, _SCALE, when=_is_bare, **kind),
        NpuOp(op, "RecurrentGatedDeltaRule", recurrent_gated_delta_rule, _SCALE, **kind),
    )


_DELTA, _CONV_TWIN = (
    "npu_recurrent_gated_delta_rule_functional",
    "torchair::npu_fused_causal_conv1d_functional",
)
ROWS = (
    *_delta_rows(_DELTA, copies=("state",)),
    *_delta_rows("npu_recurrent_gated_delta_rule", outputs=(0,), writes={"state": 1}),
    NpuOp("npu_chunk_gated_delta_rule", "ChunkGatedDeltaRule", chunk_gated_delta_rule, _SCALE),
    NpuOp(_CONV_TWIN, "FusedCausalConv1d", causal_conv, _CONV, outputs=(1, 0), copies=("conv_states",)),
    NpuOp(
        "npu_fused_causal_conv1d",
        "FusedCausalConv1d",
        causal_conv,
        _CONV,
        outputs=(1,),
        writes={"conv_states": 0},
    ),
    NpuOp(
        "npu_fused_causal_conv1d_v2",
        "InplaceFusedCausalConv1d",
        causal_conv,
        _CONV,
        outputs=(),
        writes={"conv_states": 0, "x": 1},
    ),
    NpuOp("npu_masked_causal_conv1d", "MaskedCausalConv1d", masked_causal_conv1d),
)
IN_PLACE = (
    InPlaceOp("npu_recurrent_gated_delta_rule", _DELTA, {"state": 1}, (0,)),
    InPlaceOp("npu_fused_causal_conv1d", _CONV_TWIN, {"conv_states": 1}, (0,)),
    InPlaceOp("npu_fused_causal_conv1d_v2", _CONV_TWIN, {"conv_states": 1, "x": 0}, ()),
)
