"""Compute rotary position embedding: x · cos + rot(x) · sin, with four ways to pair the columns."""

from __future__ import annotations

import torch

from torchair.ops.npu.common.op_spec import NpuOp, made
from torchair.ops.numerics.formats import wide

MODES = ("half", "interleave", "quarter", "interleave-half")
HALF, INTERLEAVE, QUARTER, INTERLEAVE_HALF = range(4)
# Numbers of the layouts in the IR.
LAYOUTS = {"BSND": 1, "BSH": 1, "SBND": 2, "BNSD": 3, "TND": 4}


def turned(x, mode=HALF):
    """Return rot(x): the partner of every column, negated for the imaginary part."""
    if mode == INTERLEAVE:
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((-odd, even), -1).flatten(-2)
    if mode == QUARTER:
        return torch.cat([turned(half) for half in x.chunk(2, -1)], -1)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def turned_back(x, mode=HALF):
    """Apply the transpose of `turned`, which is its negative."""
    return -turned(x, mode)


def deinterleaved(x):
    """Return the even positions, then the odd ones."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def interleaved(x):
    """Invert `deinterleaved`."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def roped(x, cos, sin, mode=HALF):
    """Return x · cos + rot(x) · sin in the dtype of the arithmetic; interleave-half first reorders x."""
    if mode == INTERLEAVE_HALF:
        x, mode = deinterleaved(x), HALF
    return wide(x) * wide(cos) + turned(wide(x), mode) * wide(sin)


def rotary_mul(x, r1, r2):
    """Compute the half form."""
    return roped(x, r1, r2).to(x.dtype)


def rotary_position_embedding(x, cos, sin, rotate, *, mode=0):
    """Compute any form; `rotate` is a matrix R with rot(x) = x @ R."""
    if rotate is None:
        return roped(x, cos, sin, mode).to(x.dtype)
    return (wide(x) * wide(cos) + wide(x) @ wide(rotate) * wide(sin)).to(x.dtype)


def summed_to(x, shape):
    """Sum x over the dims that broadcasting from `shape` has added."""
    return x.sum_to_size(shape)


def rotary_position_embedding_grad(dy, cos, sin, x, *, mode=0):
    """Return the gradients of x, cos and sin; without x, those of cos and sin are zeros."""
    inner, wide_dy = (HALF if mode == INTERLEAVE_HALF else mode), wide(dy)
    dx = wide_dy * wide(cos) + turned_back(wide_dy * wide(sin), inner)
    dx = interleaved(dx) if mode == INTERLEAVE_HALF else dx
    if x is None:
        return dx.to(dy.dtype), torch.zeros_like(cos), torch.zeros_like(sin)
    ordered = wide(deinterleaved(x) if mode == INTERLEAVE_HALF else x)
    dcos = summed_to(wide_dy * ordered, cos.shape).to(cos.dtype)
    return dx.to(dy.dtype), dcos, summed_to(wide_dy * turned(ordered, inner), sin.shape).to(sin.dtype)


def rotary_mul_grad(x, r1, r2, dy, *, need_backward=True):
    """Return the gradients of the half form."""
    return rotary_position_embedding_grad(dy, r1, r2, x if need_backward else None)


def apply_rotary_pos_emb(query, key, cos, sin, *, layout=1, rotary_mode="half"):
    """Rotate query and key; columns after those of cos stay unchanged."""
    mode = MODES.index(rotary_mode)
    return _leading(query, cos, sin, mode), _leading(key, cos, sin, mode)


def _leading(x, cos, sin, mode):
    width = cos.shape[-1]
    flat = x.ndim == cos.ndim - 1
    # In BSH the heads are concatenated; cos has a dim of one head.
    heads = x.unflatten(-1, (-1, width)) if flat else x
    turned_part = roped(heads[..., :width], cos, sin, mode).to(x.dtype)
    whole = torch.cat((turned_part, heads[..., width:]), -1)
    return whole.flatten(-2) if flat else whole


def interleave_rope(x, cos, sin):
    """Compute the interleave-half form."""
    return roped(x, cos, sin, INTERLEAVE_HALF).to(x.dtype)


def _is_plain(given):
    return given["rotary_mode"] == "half" and given.get("rotate") is None


_MODE = made(MODES.index, "rotary_mode")
_ROTARY = {"x": "self", "cos": "r1", "sin": "r2", "mode": _MODE}
ROWS = (
    NpuOp(
        "npu_rotary_mul",
        "RotaryMul",
        rotary_mul,
        {"x": "self"},
        when=_is_plain,
        ignored=("rotary_mode", "rotate"),
    ),
    NpuOp("npu_rotary_mul", "RotaryPositionEmbedding", rotary_position_embedding, _ROTARY),
    NpuOp(
        "npu_rotary_mul_backward",
        "RotaryMulGrad",
        rotary_mul_grad,
        {"x": "self", "dy": "grad"},
        when=_is_plain,
        ignored=("rotary_mode",),
    ),
    NpuOp(
        "npu_rotary_mul_backward",
        "RotaryPositionEmbeddingGrad",
        rotary_position_embedding_grad,
        _ROTARY | {"dy": "grad"},
    ),
    NpuOp(
        "npu_apply_rotary_pos_emb",
        "ApplyRotaryPosEmb",
        apply_rotary_pos_emb,
        {"layout": made(LAYOUTS.__getitem__, "layout")},
        copies=("query", "key"),
    ),
    NpuOp("npu_interleave_rope", "InterleaveRope", interleave_rope),
    NpuOp("npu_inference::npu_interleave_rope", "InterleaveRope", interleave_rope),
)
