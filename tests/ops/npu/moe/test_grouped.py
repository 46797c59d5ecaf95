"""Grouped products of the npu library, against a loop over groups."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.compiled import MODES, agrees, compiles, ints, rand
from tests.ops.npu.dense.test_matmul import exact, packed

npu = torch.ops.npu
i8, i32, f16, bf16 = torch.int8, torch.int32, torch.float16, torch.bfloat16
ROUNDED = {"rtol": 1e-3, "atol": 1e-3}
COUNTS = (3, 0, 4, 2)
ENDS = torch.tensor([3, 3, 7, 9])
X, W = rand(9, 16), rand(4, 16, 8)
X8, W8 = ints(-128, 128, 9, 16, dtype=i8), ints(-128, 128, 4, 16, 8, dtype=i8)
W4 = ints(-8, 8, 4, 16, 8)


def looped(x, w, step=lambda y, g: y):
    """One product per group of rows."""
    return torch.cat([step(part @ w[g], g) for g, part in enumerate(x.split(COUNTS))])


def swiglu(y):
    a, b = y.chunk(2, -1)
    return F.silu(a) * b


def per_row(y):
    scale = y.abs().amax(-1) / 127
    return (y / scale.unsqueeze(-1)).round().to(i8), scale


GROUPED = {
    "ends": (
        lambda x, w, g: npu.npu_grouped_matmul([x], [w], group_list=g, group_type=0, split_item=3),
        ENDS,
    ),
    "counts": (
        lambda x, w, g: npu.npu_grouped_matmul(
            [x], [w], group_list=g, group_type=0, split_item=2, group_list_type=1
        ),
        torch.tensor(COUNTS),
    ),
    "pairs": (
        lambda x, w, g: npu.npu_grouped_matmul(
            [x], [w], group_list=g, group_type=0, split_item=3, group_list_type=2
        ),
        torch.tensor([[0, 3], [2, 4], [3, 2], [0, 0]]),
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_kinds_of_group_lists(name):
    op, groups = GROUPED[name]
    agrees(op, (X, W, groups), lambda x, w, g: looped(x, w), **ROUNDED)


def test_a_list_of_weights_and_a_list_of_numbers():
    agrees(
        lambda x, a, b: npu.npu_grouped_matmul.List(
            [x], [a, b], group_list=[4, 9], group_type=0, split_item=3
        ),
        (X, W[0], W[1]),
        lambda x, a, b: torch.cat((x[:4] @ a, x[4:] @ b)),
        **ROUNDED,
    )


def test_rows_past_the_groups_are_zero():
    got = npu.npu_grouped_matmul([X], [W], group_list=torch.tensor([2, 3, 4, 5]), group_type=0, split_item=3)[
        0
    ]
    assert not got[5:].any()


def test_pairs_of_tensors():
    agrees(
        lambda a, b, c, d, e: npu.npu_grouped_matmul([a, b], [c, d], bias=[e, e], group_type=-1),
        (rand(3, 16), rand(5, 16), rand(16, 8), rand(16, 8, seed=1), rand(8)),
        lambda a, b, c, d, e: [a @ c + e, b @ d + e],
        **ROUNDED,
    )


def test_split_along_the_inner_dim():
    agrees(
        lambda x, w, g: npu.npu_grouped_matmul([x], [w], group_list=g, group_type=2, split_item=3),
        (rand(4, 9), rand(9, 5), ENDS),
        lambda x, w, g: torch.stack(
            [a @ b for a, b in zip(x.split(COUNTS, 1), w.split(COUNTS), strict=True)]
        ),
        **ROUNDED,
    )


QUANTISED = {
    "int8": (
        lambda x, w, s, p, g: npu.npu_grouped_matmul(
            [x],
            [w],
            scale=[s],
            per_token_scale=[p],
            group_list=g,
            group_type=0,
            split_item=3,
            output_dtype=15,
        ),
        (X8, W8, rand(4, 8), rand(9), ENDS),
        lambda x, w, s, p, g: (looped(x.double(), w.double(), lambda y, i: y * s[i]) * p.unsqueeze(-1)).to(
            bf16
        ),
    ),
    "int8_bias": (
        lambda x, w, s, b, g: npu.npu_grouped_matmul(
            [x], [w], bias=[b], scale=[s], group_list=g, group_type=0, split_item=3, output_dtype=6
        ),
        (X8, W8, rand(4, 8), ints(-99, 99, 4, 8, dtype=i32), ENDS),
        lambda x, w, s, b, g: looped(x.double(), w.double(), lambda y, i: (y + b[i]) * s[i]).float(),
    ),
    "weight_int8": (
        lambda x, w, s, o, g: npu.npu_grouped_matmul(
            [x], [w], antiquant_scale=[s], antiquant_offset=[o], group_list=g, group_type=0, split_item=3
        ),
        (X, W8, rand(4, 8), rand(4, 8, seed=1), ENDS),
        lambda x, w, s, o, g: looped(x, (w + o.unsqueeze(1)) * s.unsqueeze(1)),
    ),
    "weight_int4": (
        lambda x, w, s, g: npu.npu_grouped_matmul(
            [x], [w], antiquant_scale=[s], group_list=g, group_type=0, split_item=3, act_type=5
        ),
        (X, packed(W4), rand(4, 2, 8), ENDS),
        lambda x, w, s, g: F.silu(looped(x, W4 * s.repeat_interleave(8, 1))),
    ),
    "finalize": (
        lambda x, w, g, s, p, c, t, r: npu.npu_grouped_matmul_finalize_routing(
            x,
            w,
            g,
            scale=s,
            pertoken_scale=p,
            shared_input=c,
            logit=t,
            row_index=r,
            output_bs=5,
            shared_input_weight=0.5,
            shared_input_offset=1,
        ),
        (X8, W8, torch.tensor(COUNTS), rand(4, 8), rand(9), rand(3, 8), rand(9), ints(0, 5, 9)),
        lambda x, w, g, s, p, c, t, r: torch.cat((torch.zeros(1, 8), c * 0.5, torch.zeros(1, 8))).index_add(
            0,
            r,
            (
                looped(x.double(), w.double(), lambda y, i: y * s[i]) * p.unsqueeze(-1) * t.unsqueeze(-1)
            ).float(),
        ),
    ),
    "swiglu_quant": (
        lambda x, w, s, p, g: npu.npu_grouped_matmul_swiglu_quant_v2(x, [w], [s], p, g),
        (X8, W8, rand(4, 8) / 99, rand(9), ENDS),
        lambda x, w, s, p, g: per_row(
            swiglu((looped(x.double(), w.double(), lambda y, i: y * s[i]) * p.unsqueeze(-1)).float())
        ),
    ),
    "dequant": (
        lambda x, w, s, g: npu.npu_quant_grouped_matmul_dequant(x, w, s, g),
        (X, W8.mT.contiguous(), rand(4, 8), ENDS),
        lambda x, w, s, g: (
            looped((x / (x.abs().amax(1, True) / 127)).round().double(), w.mT.double(), lambda y, i: y * s[i])
            * (x.abs().amax(1, True) / 127)
        ).float(),
    ),
    "added": (
        lambda y, a, b, s, g: npu.npu_add_quant_gmm(y, a, b, s, g),
        (rand(4, 6, 5), rand(6, 9).to(torch.float8_e5m2), rand(9, 5).to(torch.float8_e5m2), rand(1), ENDS),
        lambda y, a, b, s, g: (
            y
            + s
            * torch.stack(
                [i @ j for i, j in zip(a.float().split(COUNTS, 1), b.float().split(COUNTS), strict=True)]
            )
        ),
    ),
    "ffn": (
        lambda x, a, b, c, d: npu.npu_ffn(x, a, b, "swiglu", bias1=c, bias2=d),
        (rand(2, 3, 16), rand(16, 12), rand(6, 10), rand(12), rand(10)),
        lambda x, a, b, c, d: swiglu(x @ a + c) @ b + d,
    ),
    "ffn_experts": (
        lambda x, a, b, c: npu.npu_ffn(x, a, b, "fastgelu", expert_tokens=list(COUNTS), bias1=c),
        (X, rand(4, 16, 6), rand(4, 6, 10), rand(4, 6)),
        lambda x, a, b, c: looped(
            looped(x, a, lambda y, i: (y + c[i]) * torch.sigmoid(1.702 * (y + c[i]))), b
        ),
    ),
    "ffn_quantised": (
        lambda x, a, b, s, p, q: npu.npu_ffn(x, a, b, "relu", scale=s, deq_scale1=p, deq_scale2=q),
        (X8, W8[0], W8[1].mT.contiguous(), torch.tensor([8.0]), torch.full((8,), 2.0**-10), rand(16) / 99),
        lambda x, a, b, s, p, q: (
            exact(((exact(x, a) * 2.0**-10).relu() * 8).round().clamp(-128, 127), b) * q
        ).half(),
    ),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_against_a_loop(name):
    agrees(*QUANTISED[name], **ROUNDED)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_grouped_ops_compile_in_both_modes(mode, dynamic):
    def block(x, w, groups):
        (y,) = npu.npu_grouped_matmul([x], [w], group_list=groups, group_type=0, split_item=3)
        return npu.npu_swiglu(y)

    compiles(block, (X, W, ENDS), mode, dynamic, **ROUNDED)
