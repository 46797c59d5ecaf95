"""The normalisation family of the npu library."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.compiled import MODES, agrees, compiles, rand
from tests.support.slow import slow

npu = torch.ops.npu
f32, bf16 = torch.float32, torch.bfloat16
ROUNDED = {"rtol": 2e-2, "atol": 2e-2}


def rms(x, gamma, eps=1e-6):
    """By torch's own op, in double precision."""
    return F.rms_norm(x.double(), gamma.shape, gamma.double(), eps).to(x.dtype)


def rstd(x, dims=1, eps=1e-6):
    listed = tuple(range(-dims, 0))
    return (x.double().square().mean(listed, keepdim=True) + eps).rsqrt().float()


def gradients(dy, x, gamma, made_rstd):
    """By autograd."""
    x, gamma = x.double().requires_grad_(), gamma.double().requires_grad_()
    with torch.enable_grad():
        y = F.rms_norm(x, gamma.shape, gamma, 1e-6)
        dx, dgamma = torch.autograd.grad(y, (x, gamma), dy.double())
    return dx.to(dy.dtype), dgamma.float()


def silu_of_group_norm(x, weight, bias):
    mean = x.double().reshape(x.shape[0], 2, -1).mean(-1)
    var = x.double().reshape(x.shape[0], 2, -1).var(-1, correction=0)
    y = F.silu(F.group_norm(x.double(), 2, weight and weight.double(), bias and bias.double()))
    return y.to(x.dtype), mean.to(x.dtype), (var + 1e-5).rsqrt().to(x.dtype)


def per_row(y):
    scale = y.abs().amax(-1) / 127
    return (y / scale.unsqueeze(-1)).round().to(torch.int8), scale


def quantised_twice(x1, x2, gamma, smooth1, smooth2):
    y, x = rms(x1 + x2, gamma), x1 + x2
    (y1, s1), (y2, s2) = per_row(y * smooth1), per_row(y * smooth2)
    return y1, y2, x, s1, s2


X, X2, GAMMA = rand(3, 4, 32), rand(3, 4, 32, seed=1), rand(32).abs()
ROWS = {
    "rms_norm": (lambda x, g: npu.npu_rms_norm(x, g), (X, GAMMA), lambda x, g: (rms(x, g), rstd(x))),
    "rms_norm_two_dims": (
        lambda x, g: npu.npu_rms_norm(x, g, 1e-3),
        (X, rand(4, 32)),
        lambda x, g: (rms(x, g, 1e-3), rstd(x, 2, 1e-3)),
    ),
    "backward": (
        lambda dy, x, g, r: npu.npu_rms_norm_backward(dy, x, g, r),
        (X2, X, GAMMA, rstd(X)),
        gradients,
    ),
    "backward_quant": (
        lambda dy, x, r, g, s: npu._npu_rms_norm_backward_quant(dy, x, r, g, s),
        (X2, X, rstd(X), GAMMA, torch.tensor([0.05])),
        lambda dy, x, r, g, s: (
            (gradients(dy, x, g, r)[0] / s).round().clamp(-128, 127).to(torch.int8),
            gradients(dy, x, g, r)[1],
        ),
    ),
    "add": (
        lambda a, b, g: npu.npu_add_rms_norm(a, b, g),
        (X, X2, GAMMA),
        lambda a, b, g: (rms(a + b, g), rstd(a + b), a + b),
    ),
    "add_cast": (
        lambda a, b, g: npu.npu_add_rms_norm_cast(a, b, g),
        (X.to(bf16), X2.to(bf16), GAMMA),
        lambda a, b, g: (
            rms(a.float() + b.float(), g),
            rms(a.float() + b.float(), g).to(bf16),
            rstd(a.float() + b.float()),
            a + b,
        ),
    ),
    "add_functional": (
        lambda a, b, g: npu.npu_add_rms_norm_v2_functional(a, b, g),
        (X, X2, GAMMA),
        lambda a, b, g: (rstd(a + b), rms(a + b, g), a + b),
    ),
    "add_quant": (
        lambda a, b, g, s, t: npu.npu_add_rms_norm_dynamic_quant(a, b, g, smooth_scale1=s, smooth_scale2=t),
        (X, X2, GAMMA, rand(32).abs(), rand(32, seed=2).abs()),
        quantised_twice,
    ),
    "group_norm_silu": (
        lambda x: npu.npu_group_norm_silu(x, None, None, 2),
        (rand(2, 4, 3, 3),),
        lambda x: silu_of_group_norm(x, None, None),
    ),
    "masked_softmax": (
        lambda x, m, b: npu.npu_masked_softmax_with_rel_pos_bias(x, m, b, 0.5),
        (rand(2, 3, 4, 5, 6), rand(3, 1, 5, 6), rand(4, 5, 6)),
        lambda x, m, b: (x * 0.5 + m.view(1, 3, 1, 5, 6) + b).softmax(-1),
    ),
    "masked_softmax_flat": (
        lambda x, m, b: npu.npu_masked_softmax_with_rel_pos_bias(x, m, b, 0.5),
        (rand(6, 4, 5, 6), rand(3, 5, 6), rand(4, 5, 6)),
        lambda x, m, b: (x * 0.5 + m.repeat(2, 1, 1).unsqueeze(1) + b).softmax(-1),
    ),
    "batch_norm_reduce": (
        lambda x: npu.batch_norm_reduce(x, 1e-5),
        (rand(2, 3, 4),),
        lambda x: (x.sum((0, 2)), (x * x).sum((0, 2))),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_against_a_formula(name):
    op, args, formula = ROWS[name]
    agrees(op, args, formula, **(ROUNDED if any(arg.dtype == bf16 for arg in args) else {}))


def test_one_smooth_scale_makes_one_pair():
    y1, y2, _, scale1, scale2 = npu.npu_add_rms_norm_dynamic_quant(X, X2, GAMMA, smooth_scale1=GAMMA)
    assert y1.shape == X.shape
    assert scale1.shape == X.shape[:-1]
    assert y2.shape == scale2.shape == (0,)
    agrees(
        lambda a, b, g: npu.npu_add_rms_norm_dynamic_quant(a, b, g, output_mask=[True, True]),
        (X, X2, GAMMA),
        lambda a, b, g: quantised_twice(a, b, g, 1.0, 1.0),
    )


def test_packed_int4_rows():
    y, _, _, scale, _ = npu.npu_add_rms_norm_dynamic_quant(X, X2, GAMMA, y_dtype=285)
    assert y.dtype == torch.int32
    assert y.shape == (3, 4, 4)
    nibbles = torch.stack([(y << (28 - 4 * i)) >> 28 for i in range(8)], -1).flatten(-2)
    expected = rms(X + X2, GAMMA)
    assert ((nibbles * scale.unsqueeze(-1) - expected).abs() <= scale.unsqueeze(-1) / 2 + 1e-6).all()


@pytest.mark.parametrize("code", [291, slow(292), 296, slow(297)])
def test_microscaled_norm_equals_formula(code):
    """Every value is within half a step of its block's scale; scales come in pairs."""
    y, scale, _ = npu.npu_rms_norm_dynamic_mx_quant(X, GAMMA, dst_type=code)
    _, total, added_scale, _ = npu.npu_add_rms_norm_dynamic_mx_quant(X, X2, GAMMA, dst_type=code)
    assert scale.shape == added_scale.shape == (3, 4, 1, 2)
    torch.testing.assert_close(total, X + X2)
    back = npu.npu_anti_mx_quant(y, scale, dst_type=6, src_type=code)
    worst = {291: 2**-3, 292: 2**-4, 296: 2**-2, 297: 2**-2}[code]
    expected = rms(X, GAMMA)
    assert (back - expected).abs().max() <= worst * 2 * expected.abs().max()
    agrees(
        lambda x, g: npu.npu_rms_norm_dynamic_mx_quant(x, g, dst_type=code)[:2],
        (X, GAMMA),
        lambda x, g: (y, scale),
    )


def gathered_inputs():
    """Statistics of 4, 6 and 2 rows of three columns, the rows themselves, and running statistics."""
    parts = [rand(n, 3, seed=n) for n in (4, 6, 2)]
    mean = torch.stack([part.mean(0) for part in parts])
    invstd = torch.stack([(part.var(0, correction=0) + 1e-5).rsqrt() for part in parts])
    return torch.cat(parts), mean, invstd, torch.zeros(3), torch.ones(3), torch.tensor([4.0, 6.0, 2.0])


def gather(op):
    return lambda x, mean, invstd, m, v, counts: op(x, mean, invstd, m, v, 0.1, 1e-5, counts)


def whole_statistics(x, mean, invstd, m, v, counts):
    now = x.mean(0), (x.var(0, correction=0) + 1e-5).rsqrt()
    return *now, 0.9 * m + 0.1 * x.mean(0), 0.9 * v + 0.1 * x.var(0)


def test_gathered_statistics_are_those_of_all_rows():
    op = torch.ops.torchair.batch_norm_gather_stats_update_functional
    agrees(gather(op), gathered_inputs(), whole_statistics, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_running_statistics_are_written(mode):
    inputs = gathered_inputs()
    gather(npu.batch_norm_gather_stats_update)(*inputs)
    torch.testing.assert_close(inputs[3:5], whole_statistics(*gathered_inputs())[2:])
    compiles(gather(npu.batch_norm_gather_stats_update), gathered_inputs(), mode, False)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_norm_ops_compile_in_both_modes(mode, dynamic):
    def block(x, residual, gamma):
        y, _, residual = npu.npu_add_rms_norm(x, residual, gamma)
        return npu.npu_rms_norm(y * 2, gamma)[0], residual

    compiles(block, (X, X2, GAMMA), mode, dynamic)


def test_gradient_is_that_of_torch():
    x, gamma = X.clone().requires_grad_(), GAMMA.clone().requires_grad_()
    npu.npu_rms_norm(x, gamma)[0].mul(X2).sum().backward()
    expected = gradients(X2, X, GAMMA, None)
    torch.testing.assert_close((x.grad, gamma.grad), expected)
