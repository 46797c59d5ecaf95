"""Attention of training in the npu library: results, statistics and gradients, against autograd."""

from __future__ import annotations

import pytest
import torch

import torchair
from tests.engine.kernels import check as check_kernel
from tests.engine.kernels import run as run_kernel
from tests.ops.compiled import MODES as MODES_OF_THE_BACKEND
from tests.ops.compiled import agrees, compiles, rand
from tests.support.training import backward_through_the_ir
from torchair import ge
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import UnsupportedOp

npu = torch.ops.npu
Q, K, V = rand(2, 4, 5, 8), rand(2, 2, 7, 8), rand(2, 2, 7, 8, seed=1)
DY = rand(2, 4, 5, 8, seed=2)
SHIFT = rand(2, 4, 5, 7)
TRIANGLE = torch.ones(2048, 2048).triu(1).bool()
LAYOUTS = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2),
    "BSH": lambda x: x.transpose(1, 2).flatten(2),
    "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2),
}
ROW, COLUMN = torch.arange(5)[:, None], torch.arange(7)
# What a mode shows, of 5 queries and 7 keys.
MODES = {
    0: lambda hidden: ~hidden & (COLUMN - ROW >= -2) & (COLUMN - ROW <= 1),
    1: lambda hidden: ~hidden,
    2: lambda hidden: COLUMN <= ROW,
    3: lambda hidden: COLUMN <= ROW + 2,
    4: lambda hidden: (COLUMN - ROW - 2 >= -2) & (COLUMN - ROW - 2 <= 1),
    6: lambda hidden: (COLUMN <= ROW + 2) | (torch.tensor([4, 6])[:, None, None, None] > COLUMN),
}


def scores(q, k, seen, shift=None):
    made = 0.3 * q.double() @ k.double().repeat_interleave(2, 1).mT
    made = made if shift is None else made + shift
    return made if seen is None else made.masked_fill(~seen, -torch.inf)


def formula(q, k, v, seen=None, shift=None, sink=None):
    """Attention written out in double precision."""
    made = scores(q, k, seen, shift)
    if sink is not None:
        made = torch.cat((made, sink.double().reshape(1, -1, 1, 1).expand(*made.shape[:3], 1)), -1)
    p = made.softmax(-1)
    return p[..., : k.shape[2]] @ v.double().repeat_interleave(2, 1)


def statistics(q, k, seen=None, shift=None):
    made = scores(q, k, seen, shift)
    top = made.amax(-1, keepdim=True)
    return tuple(x.float().expand(-1, -1, -1, 8) for x in (top, (made - top).exp().sum(-1, keepdim=True)))


def forward(q, k, v, **more):
    return npu.npu_fusion_attention(q, k, v, 4, "BNSD", scale=0.3, **more)[:3]


ROWS = {
    "plain": (
        lambda q, k, v: forward(q, k, v),
        (Q, K, V),
        lambda q, k, v: (formula(q, k, v).float(), *statistics(q, k)),
    ),
    "shift": (
        lambda q, k, v, s: forward(q, k, v, pse=s),
        (Q, K, V, SHIFT),
        lambda q, k, v, s: (formula(q, k, v, None, s).float(), *statistics(q, k, None, s)),
    ),
    "causal": (
        lambda q, k, v, m: forward(q, k, v, atten_mask=m, sparse_mode=3),
        (Q, K, V, TRIANGLE),
        lambda q, k, v, m: (formula(q, k, v, MODES[3](m)).float(), *statistics(q, k, MODES[3](m))),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_against_a_formula(name):
    op, args, expected = ROWS[name]
    agrees(op, args, expected)


@pytest.mark.parametrize("mode", MODES)
def test_flash_attention_sparse_modes_equal_autograd(mode):
    hidden = rand(2, 1, 5, 7) > 0.8
    more = {"prefix": [4, 6]} if mode == 6 else {}
    out, top, total = forward(
        Q, K, V, atten_mask=hidden, sparse_mode=mode, pre_tockens=2, next_tockens=1, **more
    )
    seen = MODES[mode](hidden)
    torch.testing.assert_close(out, formula(Q, K, V, seen).nan_to_num().float())
    kept = torch.isfinite(scores(Q, K, seen)).any(-1)
    for got, expected in zip((top, total), statistics(Q, K, seen), strict=True):
        torch.testing.assert_close(got[kept], expected[kept])


def made_gradients(parts, layout="BNSD", **more):
    """Gradients by the library, from a result and its statistics."""
    given = [LAYOUTS[layout](x) for x in parts[:3]]
    dy = LAYOUTS[layout](DY)
    out, top, total, *_ = npu.npu_fusion_attention(*given, 4, layout, scale=0.3, **more)
    return npu.npu_fusion_attention_grad(
        *given, dy, 4, layout, scale_value=0.3, softmax_max=top, softmax_sum=total, attention_in=out, **more
    )


def expected_gradients(parts, seen=None, shift=None, sink=None):
    leaves = [x.clone().requires_grad_() for x in (*parts, *(x for x in (shift, sink) if x is not None))]
    rest = iter(leaves[3:])
    shift, sink = (None if x is None else next(rest) for x in (shift, sink))
    return torch.autograd.grad(formula(*leaves[:3], seen, shift, sink), leaves, DY.double())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_in_every_layout(layout):
    got = made_gradients((Q, K, V), layout, atten_mask=TRIANGLE, sparse_mode=2)
    expected = expected_gradients((Q, K, V), MODES[2](None))
    for a, b in zip(got, expected, strict=False):
        torch.testing.assert_close(a, LAYOUTS[layout](b), rtol=1e-5, atol=1e-5)
    assert [x.shape for x in got[3:]] == [(0,), (0,)]


@pytest.mark.parametrize("place", range(3))
def test_operands_whose_rows_are_not_side_by_side(place):
    """The CPU's fused kernels do not ask for strides in the last dim."""
    parts = [Q, *(x.repeat_interleave(2, 1) for x in (K, V))]
    parts[place] = parts[place].mT.contiguous().mT
    q, k, v = leaves = [x.detach().requires_grad_() for x in parts]
    expected = torch.softmax(0.3 * q @ k.mT, -1) @ v
    out, top, total = forward(*parts)
    torch.testing.assert_close(out, expected.detach())
    got = npu.npu_fusion_attention_grad(
        *parts, DY, 4, "BNSD", scale_value=0.3, softmax_max=top, softmax_sum=total, attention_in=out
    )
    torch.testing.assert_close(got[:3], torch.autograd.grad(expected, leaves, DY), rtol=1e-5, atol=1e-5)


def test_gradients_of_shift_and_sink():
    sink = rand(4)
    got = made_gradients((Q, K, V), pse=SHIFT, sink=sink)
    for a, b in zip(got, expected_gradients((Q, K, V), None, SHIFT, sink), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_gradients_of_rows_that_see_nothing_are_zero():
    hidden = torch.zeros(5, 7, dtype=torch.bool)
    hidden[2] = True
    dq, dk, dv, *_ = made_gradients((Q, K, V), atten_mask=hidden, sparse_mode=1)
    rest = ~hidden[:, 0]
    kept = [x[:, :, rest] for x in (Q, DY)]
    leaves = [x.clone().requires_grad_() for x in (kept[0], K, V)]
    expected = torch.autograd.grad(formula(*leaves), leaves, kept[1].double())
    assert not dq[:, :, 2].any()
    for a, b in zip((dq[:, :, rest], dk, dv), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_packed_sequences():
    """Two sequences of 3 and 2 queries, 4 and 3 keys, behind each other."""
    q, k, v = (x.permute(2, 1, 0, 3)[:, :, 0].contiguous() for x in (Q, K, V))
    dy = DY.permute(2, 1, 0, 3)[:, :, 0].contiguous()
    ends = {"actual_seq_qlen": [3, 5], "actual_seq_kvlen": [4, 7]}
    out, top, total, *_ = npu.npu_fusion_attention(q, k, v, 4, "TND", scale=0.3, **ends)
    got = npu.npu_fusion_attention_grad(
        q, k, v, dy, 4, "TND", scale_value=0.3, softmax_max=top, softmax_sum=total, attention_in=out, **ends
    )
    assert top.shape == total.shape == (5, 4, 8)
    for rows, columns in ((slice(0, 3), slice(0, 4)), (slice(3, 5), slice(4, 7))):
        leaves = [x.clone().requires_grad_() for x in (Q[:1, :, rows], K[:1, :, columns], V[:1, :, columns])]
        one = formula(*leaves)
        torch.testing.assert_close(out[rows], one[0].transpose(0, 1).float())
        grads = torch.autograd.grad(one, leaves, DY[:1, :, rows].double())
        for a, b, part in zip(got, grads, (rows, columns, columns), strict=False):
            torch.testing.assert_close(a[part], b[0].transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_autograd_reaches_queries_keys_values_and_shift():
    leaves = [x.clone().requires_grad_() for x in (Q, K, V, SHIFT)]
    out = npu.npu_fusion_attention(*leaves[:3], 4, "BNSD", pse=leaves[3], scale=0.3)[0]
    got = torch.autograd.grad(out, leaves, DY)
    for a, b in zip(got, expected_gradients((Q, K, V), None, SHIFT), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_gradients_of_rows_that_are_as_low_as_numbers_go():
    """Models hide by adding the lowest number; a row that sees nothing then sees everything alike."""
    lowest = torch.zeros(2, 4, 5, 7)
    lowest[0, :, 1] = lowest[1, 0, 2, 3:] = torch.finfo(torch.float32).min
    leaves = [x.clone().requires_grad_() for x in (Q, *(x.repeat_interleave(2, 1) for x in (K, V)))]
    got = torch.autograd.grad(
        npu.npu_fusion_attention(*leaves, 4, "BNSD", scale=0.3, pse=lowest)[0], leaves, DY
    )
    shares = (leaves[0] @ leaves[1].mT * 0.3 + lowest).softmax(-1)
    torch.testing.assert_close(got, torch.autograd.grad(shares @ leaves[2], leaves, DY), rtol=1e-5, atol=1e-5)


def test_dropout_by_a_mask_of_bits():
    keeps = rand(2, 4, 5, 7) > 0
    bytes_ = (keeps.flatten().unflatten(0, (-1, 8)) * 2 ** torch.arange(8)).sum(1).to(torch.uint8)
    out = npu.npu_fusion_attention(Q, K, V, 4, "BNSD", scale=0.3, keep_prob=0.5, dropout_mask=bytes_)[0]
    p = scores(Q, K, None).softmax(-1) * keeps / 0.5
    torch.testing.assert_close(out, (p @ V.double().repeat_interleave(2, 1)).float())
    with pytest.raises(NotImplementedError, match="dropout"):
        npu.npu_fusion_attention(Q, K, V, 4, "BNSD", keep_prob=0.5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_gradient(dynamic):
    def gradients(q, k, v, dy):
        out, top, total, *_ = npu.npu_fusion_attention(q, k, v, 4, "BNSD", scale=0.3)
        return npu.npu_fusion_attention_grad(
            q, k, v, dy, 4, "BNSD", scale_value=0.3, softmax_max=top, softmax_sum=total, attention_in=out
        )[:3]

    compiles(gradients, (Q, K, V, DY), "max-autotune", dynamic, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES_OF_THE_BACKEND)
def test_training_through_the_backend(mode):
    config = CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = "eager"

    def attend(q, k, v):
        return npu.npu_fusion_attention(q, k, v, 4, "BNSD", scale=0.3)[0]

    torch._dynamo.reset()
    compiled = torch.compile(attend, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
    leaves = [x.half().requires_grad_() for x in (Q, K, V)]
    with backward_through_the_ir():
        got = torch.autograd.grad(compiled(*leaves), leaves, DY.half())
    for a, b in zip(got, expected_gradients((Q, K, V)), strict=True):
        torch.testing.assert_close(a.float(), b, rtol=1e-2, atol=1e-2)


def of_the_ir(op, *tensors, **starts):
    return op(*tensors, head_num=4, input_layout="BNSD", scale_value=0.3, **starts)


@pytest.mark.parametrize("op", [ge.FlashAttentionScore, ge.FlashAttentionScoreGrad])
def test_positions_begin_at_zero(op):
    """Other producers write the start of the positions even where nothing counts from it."""
    tensors = [x.half() for x in ((Q, K, V) if op is ge.FlashAttentionScore else (Q, K, V, DY))]
    (expected, _) = run_kernel(lambda *given: of_the_ir(op, *given), *tensors)
    check_kernel(lambda *given: of_the_ir(op, *given, q_start_idx=[0], kv_start_idx=[0]), expected, *tensors)
    with pytest.raises(UnsupportedOp, match="do not begin at 0") as caught:
        run_kernel(lambda *given: of_the_ir(op, *given, q_start_idx=[0], kv_start_idx=[3]), *tensors)
    assert "kv_start_idx [3]" in str(caught.value)
