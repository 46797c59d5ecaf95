"""GELU and gated units of the npu library."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.compiled import MODES, agrees, compiles, ints, rand
from tests.support.training import backward_through_the_ir

npu = torch.ops.npu
bf16 = torch.bfloat16
X = rand(3, 4, 16)


def gradient(fn):
    """dy -> gradient of `fn`, by autograd."""

    def run(dy, x):
        x = x.clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(fn(x), x, dy)[0]

    return run


def swiglu(x, dim=-1):
    a, b = x.chunk(2, dim)
    return F.silu(a) * b


def clipped(a, b, alpha=1.702, limit=7.0, bias=1.0):
    a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    return a * torch.sigmoid(alpha * a) * (b + bias)


def per_row(y, most=127):
    scale = y.abs().amax(-1) / most
    return (y / scale.unsqueeze(-1)).round().to(torch.int8), scale


def dequantized(x, weight, rows):
    """Groups of 2 and 3 rows, by a plain loop."""
    parts = [x[0:2].float() * weight[0], x[2:5].float() * weight[1]]
    return torch.cat(parts) * rows.unsqueeze(-1)


ROWS = {
    "swiglu": (lambda x: npu.npu_swiglu(x), (X,), swiglu),
    "swiglu_dim": (lambda x: npu.npu_swiglu(x, 1), (X,), lambda x: swiglu(x, 1)),
    "swiglu_backward": (
        lambda dy, x: npu.npu_swiglu_backward(dy, x, -1),
        (rand(3, 4, 8), X),
        gradient(swiglu),
    ),
    "clipped_interleaved": (
        lambda x: npu.npu_clipped_swiglu(x, limit=0.5),
        (X,),
        lambda x: clipped(x[..., ::2], x[..., 1::2], limit=0.5),
    ),
    "clipped_halves": (
        lambda x: npu.npu_clipped_swiglu(x, interleaved=False, dim=1, alpha=1.0, bias=0.0),
        (X,),
        lambda x: clipped(*x.chunk(2, 1), 1.0, 7.0, 0.0),
    ),
    "geglu": (
        lambda x: npu.npu_geglu(x),
        (X,),
        lambda x: (
            x[..., :8] * F.gelu(x[..., 8:], approximate="tanh"),
            F.gelu(x[..., 8:], approximate="tanh"),
        ),
    ),
    "geglu_left": (
        lambda x: npu.npu_geglu(x, -1, 0, True),
        (X,),
        lambda x: (x[..., 8:] * F.gelu(x[..., :8]), F.gelu(x[..., :8])),
    ),
    "gelu": (lambda x: npu.npu_gelu(x, approximate="tanh"), (X,), lambda x: F.gelu(x, approximate="tanh")),
    "gelu_backward": (
        lambda dy, x: npu.npu_gelu_backward(dy, x),
        (rand(3, 4, 16, seed=3), X),
        gradient(F.gelu),
    ),
    "fast_gelu": (lambda x: npu.npu_fast_gelu(x), (X,), lambda x: x * torch.sigmoid(1.702 * x)),
    "fast_gelu_old": (lambda x: npu.fast_gelu(x), (X,), lambda x: x * torch.sigmoid(1.702 * x)),
    "fast_gelu_backward": (
        lambda dy, x: npu.npu_fast_gelu_backward(dy, x),
        (rand(3, 4, 16, seed=3), X),
        gradient(lambda x: x * torch.sigmoid(1.702 * x)),
    ),
    "gelu_quant": (
        lambda x, s: npu.npu_gelu_quant(x, input_scale=s),
        (X, rand(16).abs()),
        lambda x, s: per_row(F.gelu(x) * s),
    ),
    "gelu_quant_static": (
        lambda x, s, o: npu.npu_gelu_quant(x, input_scale=s, input_offset=o, quant_mode="static")[0],
        (X, rand(16).abs() * 20, rand(16)),
        lambda x, s, o: (F.gelu(x) * s + o).round().clamp(-128, 127).to(torch.int8),
    ),
    "gelu_quant_fp8": (
        lambda x, s: npu.npu_gelu_quant(x, input_scale=s, quant_mode="static", dst_type=292)[0].float(),
        (X, rand(16).abs() * 20),
        lambda x, s: (F.gelu(x) * s).to(torch.float8_e4m3fn).float(),
    ),
    "dequant_swiglu_quant": (
        lambda x, w, r: npu.npu_dequant_swiglu_quant(x, weight_scale=w, activation_scale=r, quant_mode=1),
        (ints(-99, 99, 5, 16, dtype=torch.int32), rand(16).abs(), rand(5).abs()),
        lambda x, w, r: per_row(
            F.silu((x * w * r[:, None])[:, 8:]) * (x * w * r[:, None])[:, :8],
        ),
    ),
    "dequant_swiglu_quant_groups": (
        lambda x, w, r, q, c: npu.npu_dequant_swiglu_quant(
            x,
            weight_scale=w,
            activation_scale=r,
            quant_scale=q,
            group_index=c,
            activate_left=True,
            quant_mode=1,
        ),
        (
            ints(-99, 99, 5, 16, dtype=torch.int32),
            rand(2, 16).abs(),
            rand(5).abs() / 50,
            rand(2, 8).abs(),
            torch.tensor([2, 3]),
        ),
        lambda x, w, r, q, c: per_row(
            swiglu(dequantized(x, w, r)) * torch.cat((q[:1].expand(2, 8), q[1:].expand(3, 8)))
        ),
    ),
    "dequant_swiglu_quant_static": (
        lambda x, q, o: npu.npu_dequant_swiglu_quant(
            x, quant_scale=q, quant_offset=o, swiglu_mode=1, round_mode=2, clamp_limit=1.0
        )[0],
        (X.flatten(0, 1), rand(8).abs() / 20 + 0.01, rand(8)),
        lambda x, q, o: (
            (clipped(x[:, ::2], x[:, 1::2], limit=1.0) / q + o).floor().clamp(-128, 127).to(torch.int8)
        ),
    ),
    "inference_name": (
        lambda x, b: torch.ops.npu_inference.npu_dequant_swiglu_quant(x, bias=b, quant_mode=1),
        (ints(-99, 99, 5, 16, dtype=torch.int32), ints(-9, 9, 16, dtype=torch.int32)),
        lambda x, b: per_row(F.silu((x + b).float()[:, 8:]) * (x + b).float()[:, :8]),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_against_a_formula(name):
    agrees(*ROWS[name])


def test_given_scales_are_not_returned():
    _, scale = npu.npu_gelu_quant(X, input_scale=torch.ones(16), quant_mode="static")
    assert scale is None


def test_arithmetic_is_float32():
    x = rand(64, 256, dtype=bf16)
    torch.testing.assert_close(npu.npu_swiglu(x), swiglu(x.float()).to(bf16), rtol=0, atol=0)


@pytest.mark.parametrize("axis", [-1, -2])
def test_microscaled_activation_equals_formula(axis):
    x = rand(70, 64)
    y, scale = npu.npu_swiglu_mx_quant(x, axis=axis, dst_type=292)
    assert scale.shape == ((70, 1, 2) if axis == -1 else (2, 32, 2))
    back = npu.npu_anti_mx_quant(y, scale, axis=axis, dst_type=6, src_type=292)
    expected = F.silu(x[:, 32:]) * x[:, :32]
    assert (back - expected).abs().max() <= 2**-4 * expected.abs().max()
    agrees(lambda x: npu.npu_swiglu_mx_quant(x, axis=axis, dst_type=292), (x,), lambda x: (y, scale))


def test_microscaled_blocks_stay_inside_groups():
    """Groups of 40 and 30 rows: the same as quantising each group alone."""
    x, counts = rand(70, 64), torch.tensor([40, 30])
    y, scale = npu.npu_swiglu_mx_quant(x, group_index=counts, axis=-2, dst_type=291)
    first, second = (npu.npu_swiglu_mx_quant(part, axis=-2, dst_type=291) for part in x.split([40, 30]))
    assert torch.equal(y.float(), torch.cat((first[0], second[0])).float())
    assert scale.shape == (70 // 64 + 2, 32, 2)
    assert torch.equal(scale[0], first[1][0])
    assert torch.equal(scale[1], second[1][0])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_activation_ops_compile_in_both_modes(mode, dynamic):
    def block(x):
        return npu.npu_swiglu(x) + npu.npu_geglu(x)[0], npu.npu_gelu_quant(x)

    compiles(block, (X,), mode, dynamic)


@pytest.mark.parametrize("op", [npu.npu_swiglu, npu.npu_gelu, npu.npu_fast_gelu])
def test_gradients_survive_compiling(op):
    def loss(x):
        return op(x * 2).square().sum()

    eager, compiled = X.clone().requires_grad_(), X.clone().requires_grad_()
    loss(eager).backward()
    with backward_through_the_ir():
        torch.compile(loss, backend="npu", options={"codegen": "eager"})(compiled).backward()
    assert eager.grad.abs().sum() > 0
    torch.testing.assert_close(compiled.grad, eager.grad)
