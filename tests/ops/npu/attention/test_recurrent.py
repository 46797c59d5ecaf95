"""The gated delta rule and short convolutions of the npu library, against loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.compiled import MODES, agrees, compiles, halved, rand

npu, air = torch.ops.npu, torch.ops.torchair
LENGTHS = torch.tensor([3, 1, 4], dtype=torch.int32)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def delta_inputs():
    """8 tokens in 3 sequences, 2 key heads, 4 value heads, 10 slots."""
    query, key = F.normalize(rand(8, 2, 6), dim=-1), F.normalize(rand(8, 2, 6, seed=1), dim=-1)
    slots = torch.tensor([9, 0, 1, 2, 8, 3, 4, 5], dtype=torch.int32)
    return (
        query,
        key,
        rand(8, 4, 5),
        rand(10, 4, 5, 6),
        rand(8, 4).sigmoid(),
        LENGTHS,
        slots,
        -rand(8, 4).abs(),
    )


def delta(query, key, value, state, beta, lengths, slots, g, gk=None, accepted=None, scale=1.0):
    """One token, one head at a time."""
    states, out, token = state.clone(), torch.empty_like(value), 0
    for sequence, length in enumerate(lengths.tolist()):
        begin = token if accepted is None else token + accepted[sequence].item() - 1
        current = state[slots[begin]].clone()
        for _ in range(length):
            for head in range(value.shape[1]):
                k, q = key[token, head // 2], query[token, head // 2] * scale
                s = current[head] * g[token, head].exp()
                s = s if gk is None else s * gk[token, head].exp()
                s = s + beta[token, head] * torch.outer(value[token, head] - s @ k, k)
                current[head], out[token, head] = s, s @ q
            states[slots[token]] = current
            token += 1
    return out, states


def positional(op, **rest):
    def run(query, key, value, state, beta, lengths, slots, g):
        return op(
            query,
            key,
            value,
            state,
            beta=beta,
            actual_seq_lengths=lengths,
            ssm_state_indices=slots,
            g=g,
            **rest,
        )

    return run


def test_recurrent_delta_rule():
    agrees(positional(npu.npu_recurrent_gated_delta_rule_functional), delta_inputs(), delta, **CLOSE)


def test_decay_per_key_and_accepted_tokens():
    gk, accepted = -rand(8, 4, 6).abs(), torch.tensor([2, 1, 3])
    got = positional(
        npu.npu_recurrent_gated_delta_rule_functional, gk=gk, num_accepted_tokens=accepted, scale=0.5
    )
    expected = delta(*delta_inputs(), gk, accepted, 0.5)
    torch.testing.assert_close(tuple(got(*delta_inputs())), expected, **CLOSE)


@pytest.mark.parametrize("mode", MODES)
def test_state_is_written(mode):
    inputs = delta_inputs()
    out, states = delta(*inputs)
    torch.testing.assert_close(positional(npu.npu_recurrent_gated_delta_rule)(*inputs), out, **CLOSE)
    torch.testing.assert_close(inputs[3], states, **CLOSE)
    *parts, decay = delta_inputs()
    parts = [halved(part, torch.bfloat16) for part in parts]
    compiles(positional(npu.npu_recurrent_gated_delta_rule), (*parts, decay), mode, False, **CLOSE)


def test_chunks_are_the_same_recurrence():
    query, key, value, _, beta, lengths, _, g = delta_inputs()
    state = rand(3, 4, 5, 6)

    def formula(query, key, value, beta, state, lengths, g):
        slots = torch.repeat_interleave(torch.arange(3), lengths)
        return delta(query, key, value, state, beta, lengths, slots, g)

    agrees(
        lambda q, k, v, b, s, n, g: npu.npu_chunk_gated_delta_rule(
            q, k, v, beta=b, initial_state=s, actual_seq_lengths=n, g=g
        ),
        (query, key, value, beta, state, lengths, g),
        formula,
        **CLOSE,
    )


# Convolutions


def conv_inputs(states=3):
    """8 tokens in 3 sequences, 4 columns, 3 taps; 5 lines of `states` rows."""
    bounds, lines = torch.tensor([0, 3, 4, 8]), torch.tensor([4, 1, 2])
    return rand(8, 4), rand(3, 4), rand(5, states, 4), bounds.int(), lines.int()


def conv(x, weight, states, bounds, lines, fresh=(), accepted=None, pad=None):
    """(y, states): one sequence at a time, with torch's own convolution."""
    taps, made, out = weight.shape[0], states.clone(), torch.zeros_like(x)
    for b, line in enumerate(lines.tolist()):
        if line == pad:
            continue
        rows = x[bounds[b] : bounds[b + 1]]
        begin = states.shape[1] - taps + 1 if accepted is None else accepted[b].item() - 1
        history = states[line, begin : begin + taps - 1]
        history = torch.zeros_like(history) if b in fresh else history
        joined = torch.cat((history, rows))
        out[bounds[b] : bounds[b + 1]] = F.conv1d(joined.t(), weight.t().unsqueeze(1), groups=4).t()
        kept = joined[-states.shape[1] :]
        made[line, states.shape[1] - len(kept) :] = kept
    return out, made


@pytest.mark.parametrize("rows", [2, 3])
def test_causal_conv(rows):
    agrees(
        lambda x, w, s, q, c: air.npu_fused_causal_conv1d_functional(
            x, w, s, query_start_loc=q, cache_indices=c
        ),
        conv_inputs(rows),
        conv,
        **CLOSE,
    )


def test_conv_of_new_and_skipped_sequences():
    x, weight, states, bounds, _ = conv_inputs(2)
    lines, computed = torch.tensor([4, -1, 2]), torch.tensor([0, 7, 9])
    y, made = air.npu_fused_causal_conv1d_functional(
        x, weight, states, query_start_loc=bounds, cache_indices=lines, num_computed_tokens=computed
    )
    torch.testing.assert_close((y, made), conv(x, weight, states, bounds, lines, fresh=(0,), pad=-1))


def test_conv_after_accepted_tokens():
    x, weight, states, bounds, lines = conv_inputs(5)
    accepted = torch.tensor([2, 1, 3])
    y, made = air.npu_fused_causal_conv1d_functional(
        x, weight, states, query_start_loc=bounds, cache_indices=lines, num_accepted_tokens=accepted
    )
    torch.testing.assert_close((y, made), conv(x, weight, states, bounds, lines, accepted=accepted))


def test_conv_epilogues():
    x, weight, states, bounds, lines = conv_inputs(2)
    bias = rand(4)
    plain, _ = conv(x, weight, states, bounds, lines)
    rest = {"query_start_loc": bounds, "cache_indices": lines, "bias": bias}
    got = npu.npu_fused_causal_conv1d(
        x, weight, states.clone(), activation="silu", residual_connection=1, **rest
    )
    torch.testing.assert_close(got, F.silu(plain + bias) + x)
    computed = torch.tensor([1, 5, 5])
    got = npu.npu_fused_causal_conv1d(
        x, weight, states.clone(), conv_mode="pangu", num_computed_tokens=computed, **rest
    )
    assert not got[0].any()
    torch.testing.assert_close(got[1:], (plain + bias)[1:])


def test_conv_keeps_the_rows_before_every_block():
    """Blocks of 4 tokens; one sequence of 8 tokens after 3 computed ones: blocks 0 and 1 end on the way."""
    x, weight, states = rand(8, 4), rand(3, 4), rand(6, 2, 4)
    table = torch.tensor([[5, 0, 3]])
    y, made = air.npu_fused_causal_conv1d_functional(
        x, weight, states, query_start_loc=torch.tensor([0, 8]), cache_indices=table, block_size=4,
        num_computed_tokens=torch.tensor([3]), initial_state_idx=torch.tensor([0]),
        block_idx_first_scheduled_token=torch.tensor([0]), block_idx_last_scheduled_token=torch.tensor([2]),
    )  # fmt: skip
    joined = torch.cat((states[5], x))
    torch.testing.assert_close(y, F.conv1d(joined.t(), weight.t().unsqueeze(1), groups=4).t())
    # Rows of `joined` start two before token 3: block 0 ends before token 4, block 1 before token 8.
    torch.testing.assert_close(made[5], joined[1:3])
    torch.testing.assert_close(made[0], joined[5:7])
    torch.testing.assert_close(made[3], joined[-2:])
    assert torch.equal(made[[1, 2, 4]], states[[1, 2, 4]])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_conv_writes_states_and_data(mode, dynamic):
    def step(x, w, s, q, c):
        npu.npu_fused_causal_conv1d_v2(x, w, s, query_start_loc=q, cache_indices=c)
        return npu.npu_fused_causal_conv1d(x, w, s, query_start_loc=q, cache_indices=c)

    x, weight, states, bounds, lines = conv_inputs()
    expected = conv(x, weight, states, bounds, lines)
    npu.npu_fused_causal_conv1d_v2(x, weight, states, query_start_loc=bounds, cache_indices=lines)
    torch.testing.assert_close((x, states), expected, **CLOSE)
    compiles(step, halved(conv_inputs(), torch.bfloat16), mode, dynamic, **CLOSE)


def test_masked_conv():
    agrees(
        lambda x, w, m: npu.npu_masked_causal_conv1d(x, w, mask=m),
        (rand(6, 2, 4), rand(3, 4), rand(2, 6) > 0),
        lambda x, w, m: (
            F.conv1d(F.pad(x.permute(1, 2, 0), (2, 0)), w.t().unsqueeze(1), groups=4).permute(2, 0, 1)
            * m.t().unsqueeze(-1)
        ),
        **CLOSE,
    )
