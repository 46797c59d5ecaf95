"""Quantised, weight-quantised and fused products of the npu library."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.compiled import MODES, agrees, compiles, ints, rand

npu = torch.ops.npu
i8, i32, f16, bf16, e4m3 = torch.int8, torch.int32, torch.float16, torch.bfloat16, torch.float8_e4m3fn
ROUNDED = {"rtol": 1e-3, "atol": 1e-3}
A, B = ints(-128, 128, 5, 32, dtype=i8), ints(-128, 128, 32, 16, dtype=i8, seed=1)


def packed(values):
    """int4 values, eight in a word along the last dim, by plain Python."""
    flat = values.reshape(-1, 8).tolist()
    words = [sum((value & 15) << (4 * i) for i, value in enumerate(row)) for row in flat]
    signed = [word - 2**32 if word >= 2**31 else word for word in words]
    return torch.tensor(signed, dtype=i32).view(*values.shape[:-1], -1)


def exact(a, b):
    return a.double() @ b.double()


def powers(*shape, seed=0):
    """Bytes of scales near 1, in pairs."""
    return ints(124, 130, *shape, 2, dtype=torch.uint8, seed=seed)


def spread(scale, axis, length):
    """Every value's own scale, by indexing."""
    flat = scale.movedim(axis, -2).flatten(-2)
    index = torch.arange(length) // 32
    return (2.0 ** (flat[..., index].double() - 127)).movedim(-1, axis)


W4 = ints(-8, 8, 32, 16, seed=2)
X = rand(5, 32)
X8, W8 = rand(5, 64).to(e4m3), rand(64, 16).to(e4m3)
ROWS = {
    "linear": (npu.npu_linear, (X, rand(16, 32), rand(16)), F.linear),
    "fused_add": (
        lambda a, b, c: npu.npu_fused_matmul(a, b, x3=c, fused_op_type="add"),
        (X, rand(32, 16), rand(5, 16)),
        lambda a, b, c: a @ b + c,
    ),
    "fused_gelu": (
        lambda a, b, c: npu.npu_fused_matmul(a, b, bias=c, fused_op_type="gelu_tanh"),
        (X, rand(32, 16), rand(16)),
        lambda a, b, c: F.gelu(a @ b + c, approximate="tanh"),
    ),
    "transpose_batch": (
        lambda a, b: npu.npu_transpose_batchmatmul(a, b, perm_x1=[1, 0, 2]),
        (rand(5, 4, 8), rand(4, 8, 6)),
        lambda a, b: torch.einsum("mbk,bkn->mbn", a, b),
    ),
    "transpose_batch_split": (
        lambda a, b: npu.npu_transpose_batchmatmul(a, b, batch_split_factor=2),
        (rand(4, 5, 8), rand(4, 8, 6)),
        lambda a, b: torch.einsum("bmk,bkn->mbn", a, b).reshape(5, 2, 12).transpose(0, 1),
    ),
    "transpose_quant_batch": (
        lambda a, b, s, t: npu.npu_transpose_quant_batchmatmul(a, b, 6, x1_scale=s, x2_scale=t),
        (rand(5, 4, 32).to(e4m3), rand(4, 32, 6).to(e4m3), rand(5), rand(6)),
        lambda a, b, s, t: torch.einsum("mbk,bkn->mbn", a.float(), b.float()) * s.view(5, 1, 1) * t,
    ),
    "quant": (
        lambda a, b, s, p: npu.npu_quant_matmul(a, b, s, pertoken_scale=p, output_dtype=15),
        (A, B, rand(16) / 99, rand(5)),
        lambda a, b, s, p: (exact(a, b) * s * p[:, None]).to(bf16),
    ),
    "quant_to_int8": (
        lambda a, b, s, o, c: npu.npu_quant_matmul(a, b, s, offset=o, bias=c),
        (A, B, torch.tensor([2.0**-9]), torch.tensor([3.0]), ints(-999, 999, 16, dtype=i32)),
        lambda a, b, s, o, c: ((exact(a, b) + c) * s + o).round().clamp(-128, 127).to(i8),
    ),
    "quant_packed_scale": (
        lambda a, b, s: npu.npu_quant_matmul(a, b, npu.npu_trans_quant_param(s), output_dtype=5),
        (A, B, torch.tensor([2.0**-9] * 16)),
        lambda a, b, s: (exact(a, b) * s).to(f16),
    ),
    "quant_batch": (
        lambda a, b, s: npu.npu_quant_matmul(a, b, s, output_dtype=6),
        (ints(-128, 128, 3, 5, 32, dtype=i8), ints(-128, 128, 3, 32, 16, dtype=i8), rand(16)),
        lambda a, b, s: (exact(a, b) * s).float(),
    ),
    "quant_int4": (
        lambda a, b, s: npu.npu_quant_matmul(a, b, s, output_dtype=5),
        (packed(ints(-8, 8, 5, 32)), packed(W4), rand(16)),
        lambda a, b, s: (exact(ints(-8, 8, 5, 32), W4) * s).to(f16),
    ),
    "quant_int4_weight_in_groups": (
        lambda a, b, s, p: npu.npu_quant_matmul(
            a, b, s, pertoken_scale=p, output_dtype=15, group_sizes=[0, 0, 8]
        ),
        (A, packed(W4), rand(4, 16), rand(5)),
        lambda a, b, s, p: (exact(a, W4 * s.double().repeat_interleave(8, 0)) * p[:, None]).to(bf16),
    ),
    "quant_float8": (
        lambda a, b, s, p: npu.npu_quant_matmul(a, b, s, pertoken_scale=p, output_dtype=6),
        (X8, W8, rand(16), rand(5)),
        lambda a, b, s, p: a.float() @ b.float() * s * p[:, None],
    ),
    "quant_float8_tiles": (
        lambda a, b, s, p: npu.npu_quant_matmul(
            a, b, s, pertoken_scale=p, output_dtype=6, group_sizes=[1, 8, 32]
        ),
        (X8, W8, rand(2, 2), rand(5, 2)),
        lambda a, b, s, p: (
            (a.float() * p.repeat_interleave(32, 1))
            @ (b.float() * s.repeat_interleave(32, 0).repeat_interleave(8, 1))
        ),
    ),
    "quant_microscaled": (
        lambda a, b, s, p: npu.npu_quant_matmul(a, b, s, pertoken_scale=p, output_dtype=6),
        (X8, W8, powers(1, 16), powers(5, 1)),
        lambda a, b, s, p: (exact(a.double() * spread(p, 1, 64), b.double() * spread(s, 0, 64))).float(),
    ),
    "quant_hifloat8": (
        lambda a, b, s: npu.npu_quant_matmul(
            npu.npu_dtype_cast(a, 290),
            npu.npu_dtype_cast(b, 290),
            s,
            output_dtype=6,
            x1_dtype=290,
            x2_dtype=290,
        ),
        (ints(-8, 8, 5, 32).float(), ints(-8, 8, 32, 16).float(), rand(16)),
        lambda a, b, s: a @ b * s,
    ),
    "fused_quant": (
        lambda a, b, s, c: torch.ops.npu_inference.npu_fused_quant_matmul(
            a, b, npu.npu_trans_quant_param(s), x3=c, fused_op_type="add", output_dtype=6
        ),
        (A, B, torch.tensor([0.25, 2.0] * 8), rand(5, 16)),
        lambda a, b, s, c: (exact(a, b) * s).float() + c,
    ),
    "dequant": (
        lambda x, w, s, p: npu.npu_quant_matmul_dequant(x, w, s, x_scale=p),
        (X, ints(-128, 128, 16, 32, dtype=i8), rand(16), torch.full((5,), 0.05)),
        lambda x, w, s, p: (exact((x / 0.05).round().clamp(-128, 127), w.t()) * s * 0.05).float(),
    ),
    "dequant_per_row": (
        lambda x, w, s: npu.npu_quant_matmul_dequant(x, w, s),
        (X, ints(-128, 128, 16, 32, dtype=i8), rand(16)),
        lambda x, w, s: (
            exact((x / (x.abs().amax(1, True) / 127)).round(), w.t()) * s * (x.abs().amax(1, True) / 127)
        ).float(),
    ),
    "reduce_sum": (
        lambda a, b, s, t: npu.npu_quant_matmul_reduce_sum(a, b, x1_scale=s, x2_scale=t),
        (ints(-128, 128, 3, 5, 32, dtype=i8), ints(-128, 128, 3, 32, 16, dtype=i8), rand(3, 5), rand(16)),
        lambda a, b, s, t: (exact(a, b) * s.unsqueeze(-1) * t).sum(0).to(bf16),
    ),
    "added": (
        lambda y, a, b, s, p: npu.npu_add_quant_matmul(y, a, b, s, x1_scale=p),
        (rand(5, 16), X8, W8, powers(1, 16), powers(5, 1)),
        lambda y, a, b, s, p: (
            y + exact(a.double() * spread(p, 1, 64), b.double() * spread(s, 0, 64))
        ).float(),
    ),
    "weight_int8": (
        lambda x, w, s, o, b: npu.npu_weight_quant_batchmatmul(x, w, s, o, None, None, b),
        (X, B, rand(16), rand(16), rand(16)),
        lambda x, w, s, o, b: x @ ((w + o) * s) + b,
    ),
    "weight_int4_in_groups": (
        lambda x, w, s: npu.npu_weight_quant_batchmatmul(x, w, s, antiquant_group_size=8),
        (X, packed(W4), rand(4, 16)),
        lambda x, w, s: x @ (W4 * s.repeat_interleave(8, 0)),
    ),
    "weight_int4_transposed": (
        lambda x, w, s: npu.npu_weight_quant_batchmatmul(x, w.t(), s),
        (X, packed(W4.t().contiguous()), rand(16)),
        lambda x, w, s: x @ (W4 * s),
    ),
    "weight_to_int8": (
        lambda x, w, s, q: npu.npu_weight_quant_batchmatmul(x, w, s, None, q),
        (X, B, torch.full((16,), 2.0**-7), torch.full((16,), 2.0)),
        lambda x, w, s, q: (exact(x, w) * 2.0**-6).round().clamp(-128, 127).to(i8),
    ),
    "conv": (
        lambda x, w, s, b: npu.npu_quant_conv2d(
            x, w, npu.npu_trans_quant_param(s), [2, 1], [1, 0], [1, 1], bias=b, offset_x=3
        ),
        (
            ints(-9, 9, 2, 4, 6, 7, dtype=i8),
            ints(-9, 9, 3, 4, 3, 3, dtype=i8),
            torch.tensor([0.5, 2.0, 0.25]),
            ints(-9, 9, 3, dtype=i32),
        ),
        lambda x, w, s, b: (
            F.conv2d(F.pad(x.double(), (0, 0, 1, 1), value=3.0), w.double(), b.double(), (2, 1))
            * s.view(1, 3, 1, 1)
        ).half(),
    ),
    "lora": (
        lambda y, x, b, i, a: npu.npu_batch_gather_matmul(y, x, b, i, a, 1, 0.5, 2, 6),
        (rand(4, 10), rand(4, 7), rand(3, 2, 6, 5), torch.tensor([2, 0, 3, 2], dtype=i32), rand(3, 2, 5, 7)),
        lambda y, x, b, i, a: torch.stack(
            [
                y[r]
                if i[r] == 3
                else torch.cat((y[r, :2], y[r, 2:8] + 0.5 * (b[i[r], 1] @ (a[i[r], 1] @ x[r])), y[r, 8:]))
                for r in range(4)
            ]
        ),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_against_a_formula(name):
    allowed = {"quant_hifloat8": False}
    if allowed.get(name, True):
        agrees(*ROWS[name], **ROUNDED)
    else:
        op, args, formula = ROWS[name]
        torch.testing.assert_close(op(*args), formula(*args), **ROUNDED)


def test_sums_beyond_24_bits_are_exact():
    a, b = torch.full((1, 2048), 127, dtype=i8), torch.full((2048, 1), 127, dtype=i8)
    a[0, 0] = 126
    got = npu.npu_quant_matmul(a, b, torch.ones(1), output_dtype=6)
    assert got.item() == float(torch.tensor(127.0 * 127 * 2048 - 127))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_matmul_ops_compile_in_both_modes(mode, dynamic):
    def block(x, weight, scale, w4, s4):
        rows, row_scale = npu.npu_dynamic_quant(x)
        y = npu.npu_quant_matmul(rows, weight, scale, pertoken_scale=row_scale, output_dtype=6)
        return y, npu.npu_weight_quant_batchmatmul(x, w4, s4)

    compiles(block, (X, B, rand(16), packed(W4), rand(16)), mode, dynamic, **ROUNDED)


@pytest.mark.parametrize("mode", MODES)
def test_matmul_writes_in_place(mode):
    def step(y, a, b, s, p):
        npu.npu_add_quant_matmul_(y, a, b, s, x1_scale=p)
        return y * 2

    compiles(step, (rand(5, 16), X8, W8, powers(1, 16), powers(5, 1)), mode, False, **ROUNDED)
