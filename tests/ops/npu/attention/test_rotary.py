"""Rotary embedding of the npu library, against complex multiplication."""

from __future__ import annotations

import pytest
import torch

from tests.ops.compiled import MODES, agrees, compiles, rand

npu = torch.ops.npu
MODES_OF_ROTATION = ("half", "interleave", "quarter", "interleave-half")
ANGLE = rand(2, 5, 1, 4)


def pairs(mode):
    """For 8 columns: which columns are real and imaginary parts, and where the results go."""
    return {
        "half": ([0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7]),
        "interleave": ([0, 2, 4, 6], [1, 3, 5, 7], [0, 2, 4, 6], [1, 3, 5, 7]),
        "quarter": ([0, 1, 4, 5], [2, 3, 6, 7], [0, 1, 4, 5], [2, 3, 6, 7]),
        "interleave-half": ([0, 2, 4, 6], [1, 3, 5, 7], [0, 1, 2, 3], [4, 5, 6, 7]),
    }[mode]


def spread(angle, mode):
    """cos and sin of every column."""
    _, _, real, imaginary = pairs(mode)
    made = angle.new_zeros(*angle.shape[:-1], 8)
    made[..., real] = angle
    made[..., imaginary] = angle
    return made.cos(), made.sin()


def rotated(x, angle, mode):
    from_real, from_imaginary, real, imaginary = pairs(mode)
    turned = torch.complex(x[..., from_real], x[..., from_imaginary]) * torch.polar(
        torch.ones_like(angle), angle
    )
    made = torch.empty_like(x)
    made[..., real], made[..., imaginary] = turned.real, turned.imag
    return made


X = rand(2, 5, 3, 8)


@pytest.mark.parametrize("mode", MODES_OF_ROTATION)
def test_rotary_mul(mode):
    agrees(
        lambda x, cos, sin: npu.npu_rotary_mul(x, cos, sin, mode),
        (X, *spread(ANGLE, mode)),
        lambda x, cos, sin: rotated(x, ANGLE, mode),
    )


def test_rotation_by_a_matrix():
    matrix = torch.zeros(8, 8)
    for i in range(4):
        matrix[i, i + 4], matrix[i + 4, i] = 1.0, -1.0
    agrees(
        lambda x, cos, sin, m: npu.npu_rotary_mul(x, cos, sin, "half", m),
        (X, *spread(ANGLE, "half"), matrix),
        lambda x, cos, sin, m: rotated(x, ANGLE, "half"),
    )


@pytest.mark.parametrize("mode", MODES_OF_ROTATION)
def test_rotary_gradient_equals_autograd(mode):
    """The backward op against autograd through the forward's formula."""
    dy, leaves = (
        rand(2, 5, 3, 8, seed=5),
        [part.clone().requires_grad_() for part in (X, *spread(ANGLE, mode))],
    )

    def formula(*_):
        x, cos, sin = leaves
        from_real, from_imaginary, real, imaginary = pairs(mode)
        ordered, turned = torch.zeros_like(x), torch.zeros_like(x)
        ordered[..., real], ordered[..., imaginary] = x[..., from_real], x[..., from_imaginary]
        turned[..., real], turned[..., imaginary] = -x[..., from_imaginary], x[..., from_real]
        return torch.autograd.grad(ordered * cos + turned * sin, leaves, dy)

    agrees(
        lambda dy, x, cos, sin: npu.npu_rotary_mul_backward(dy, x, cos, sin, mode),
        (dy, X, *spread(ANGLE, mode)),
        formula,
    )


@pytest.mark.parametrize("mode", ["half", "quarter", "interleave"])
def test_apply_rotary_pos_emb(mode):
    agrees(
        lambda q, k, cos, sin: npu.npu_apply_rotary_pos_emb(q, k, cos, sin, "BSND", mode),
        (X, rand(2, 5, 1, 8), *spread(ANGLE, mode)),
        lambda q, k, cos, sin: (rotated(q, ANGLE, mode), rotated(k, ANGLE, mode)),
    )


def test_only_the_leading_columns_turn():
    wide = rand(2, 5, 3, 12)
    agrees(
        lambda q, cos, sin: npu.npu_apply_rotary_pos_emb(q, q, cos, sin)[0],
        (wide, *spread(ANGLE, "half")),
        lambda q, cos, sin: torch.cat((rotated(q[..., :8], ANGLE, "half"), q[..., 8:]), -1),
    )


def test_heads_side_by_side():
    agrees(
        lambda q, cos, sin: npu.npu_apply_rotary_pos_emb(q, q, cos, sin, "BSH")[1],
        (X.flatten(-2), *spread(ANGLE, "half")),
        lambda q, cos, sin: rotated(q.view(2, 5, 3, 8), ANGLE, "half").flatten(-2),
    )


@pytest.mark.parametrize("namespace", ["npu", "npu_inference"])
def test_interleave_rope(namespace):
    op = getattr(torch.ops, namespace).npu_interleave_rope
    x, angle = X.transpose(1, 2).contiguous(), ANGLE.transpose(1, 2)
    agrees(
        lambda x, cos, sin: op(x, cos, sin),
        (x, *spread(angle, "interleave-half")),
        lambda x, cos, sin: rotated(x, angle, "interleave-half"),
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_rotary_ops_compile_in_both_modes(mode, dynamic):
    def block(q, k, cos, sin):
        return npu.npu_apply_rotary_pos_emb(q * 2, k, cos, sin), npu.npu_rotary_mul(q, cos, sin, "interleave")

    compiles(block, (X, rand(2, 5, 1, 8), *spread(ANGLE, "half")), mode, dynamic)
