"""Compute GELU and gated units, alone and fused with dequantization before and quantization after them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.ops.npu.common.groups import COUNTS, ENDS, group_ids, grouped_mx, row_values
from torchair.ops.npu.common.op_spec import NpuOp, made
from torchair.ops.numerics.formats import INT8, dynamic, ir_type, ir_type_or, mx, static, wide

# Rounding modes by their number in torch's schema.
ROUNDINGS = ("rint", "round", "floor", "ceil", "trunc")


def swi_glu(x, *, dim=-1):
    """Return silu(a) · b of the halves a, b along a dim."""
    a, b = wide(x).chunk(2, dim)
    return (F.silu(a) * b).to(x.dtype)


def swi_glu_grad(y_grad, x, *, dim=-1):
    """Return the gradient of `swi_glu`."""
    a, b = wide(x).chunk(2, dim)
    dy, s = wide(y_grad), torch.sigmoid(a)
    return torch.cat((dy * b * (s + a * s * (1 - s)), dy * a * s), dim).to(x.dtype)


def clipped_glu(a, b, alpha, limit, bias):
    """Return a · sigmoid(alpha·a) · (b + bias), a clipped from above, b on both sides."""
    a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    return a * torch.sigmoid(alpha * a) * (b + bias)


def interleaved_halves(x, dim):
    """Return the even and the odd positions along a dim."""
    pairs = x.movedim(dim, -1).unflatten(-1, (-1, 2))
    return pairs[..., 0].movedim(-1, dim), pairs[..., 1].movedim(-1, dim)


def clipped_swiglu(x, group_index, *, dim=-1, alpha=1.702, limit=7.0, bias=1.0, interleaved=True):
    """Compute the clipped unit of even and odd positions, or of halves, also for rows after the groups."""
    a, b = interleaved_halves(wide(x), dim) if interleaved else wide(x).chunk(2, dim)
    return clipped_glu(a, b, alpha, limit, bias).to(x.dtype)


def geglu(x, *, dim=-1, approximate=1, activate_left=False):
    """Return (gelu(one half) · the other, gelu of the activated half)."""
    a, b = x.chunk(2, dim)
    active, other = (a, b) if activate_left else (b, a)
    gelu = F.gelu(wide(active), approximate="tanh" if approximate else "none")
    return (gelu * wide(other)).to(x.dtype), gelu.to(x.dtype)


def gelu(x, *, approximate="none"):
    """Return x · Phi(x), with erf or the tanh form."""
    return F.gelu(x, approximate=approximate)


def gelu_grad(dy, x, *, approximate="none"):
    """Return the gradient of `gelu`."""
    return torch.ops.aten.gelu_backward(dy, x, approximate=approximate)


def fast_gelu(x):
    """Return x · sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def fast_gelu_grad(dy, x):
    """Return the gradient of `fast_gelu`."""
    s = torch.sigmoid(1.702 * wide(x))
    return (wide(dy) * (s + 1.702 * wide(x) * s * (1 - s))).to(x.dtype)


def gelu_quant(
    x,
    input_scale,
    input_offset,
    *,
    approximate="none",
    quant_mode="dynamic",
    dst_type=INT8,
    round_mode="rint",
):
    """Return (quantized gelu, scale per row); with given scales, the second result is empty."""
    y = F.gelu(wide(x), approximate=approximate)
    if quant_mode == "static":
        return static(y, input_scale, input_offset, dst_type, mode=round_mode), y.new_empty(0)
    y = y if input_scale is None else y * wide(input_scale)
    return dynamic(y, dst_type, mode=round_mode)


def gated(x, *, dim, left, mode, limit, alpha, bias):
    """Return silu(active half) · other half (mode 0), or the clipped unit of even/odd positions (1)."""
    if mode == 1:
        return clipped_glu(*interleaved_halves(x, dim), alpha, limit, bias)
    a, b = x.chunk(2, dim)
    return F.silu(a) * b if left else F.silu(b) * a


def dequantized(x, weight_scale, activation_scale, bias, ids=None):
    """Dequantize int32 products: an int bias is added before the scales (per column, per row), a float bias
    after them.
    """
    is_int = bias is not None and not bias.is_floating_point()
    y = (x + row_values(bias, ids) if is_int else x).float()
    y = y if weight_scale is None else y * row_values(weight_scale.float(), ids)
    y = y if activation_scale is None else y * activation_scale.float().reshape(*y.shape[:-1], 1)
    return y if bias is None or is_int else y + row_values(bias.float(), ids)


def dequant_swiglu_quant(
    x, weight_scale, activation_scale, bias, quant_scale, quant_offset, group_index, *,
    activate_left=False, quant_mode="static", dst_type=INT8, round_mode="rint", activate_dim=-1,
    swiglu_mode=0, clamp_limit=7.0, glu_alpha=1.702, glu_bias=1.0,
):  # fmt: skip
    """Dequantize (int32 only), gate, and quantize with given scales (as divisors) or per row; returns (y,
    scale).

    Rows of group g (`group_index` has counts) use row g of the scales; rows after the groups use the last
    one.
    """
    ids = None if group_index is None else group_ids(group_index, x.shape[0], COUNTS)[0]
    is_int = x.dtype == torch.int32
    y = dequantized(x, weight_scale, activation_scale, bias, ids) if is_int else wide(x)
    y = gated(
        y,
        dim=activate_dim,
        left=activate_left,
        mode=swiglu_mode,
        limit=clamp_limit,
        alpha=glu_alpha,
        bias=glu_bias,
    )
    smooth = None if quant_scale is None else row_values(wide(quant_scale), ids)
    if quant_mode == "dynamic":
        return dynamic(y if smooth is None else y * smooth, dst_type, mode=round_mode)
    assert smooth is not None, "static quantization has a scale"
    offset = None if quant_offset is None else row_values(wide(quant_offset), ids)
    return static(y, smooth, offset, dst_type, divide=True, mode=round_mode), y.new_zeros(y.shape[:-1])


def swiglu_mx_quant(
    x, group_index, *, activate_dim=-1, activate_left=False, swiglu_mode=0, clamp_limit=7.0, glu_alpha=1.702,
    glu_bias=1.0, group_mode=0, axis=-1, dst_type=40, round_mode="rint", scale_alg=0, max_dtype_value=0.0,
):  # fmt: skip
    """Gate, then quantize in blocks of 32 along `axis` with a shared power of two; returns (y, paired
    scales).

    Along rows (axis -2), blocks do not cross groups.
    """
    y = gated(
        wide(x), dim=activate_dim, left=activate_left, mode=swiglu_mode, limit=clamp_limit, alpha=glu_alpha,
        bias=glu_bias,
    ).to(x.dtype)  # fmt: skip
    rest = {"scale_alg": scale_alg, "maximum": max_dtype_value, "mode": round_mode}
    if group_index is None or axis in (-1, y.ndim - 1):
        return mx(y, dst_type, axis, **rest)
    return grouped_mx(y, group_index, COUNTS if group_mode == 0 else ENDS, dst_type, **rest)


_SELF = {"x": "self"}
_TYPED = {0: "dst_type"}
_GELU_QUANT = {"x": "self", "dst_type": made(ir_type_or(INT8), "dst_type")}
_DEQUANT_SWIGLU = {
    "dst_type": made(ir_type_or(INT8), "dst_type"),
    "quant_mode": made(lambda mode: ("static", "dynamic")[mode], "quant_mode"),
    "round_mode": made(lambda mode: ROUNDINGS[mode or 0], "round_mode"),
    "activate_dim": made(lambda dim: -1 if dim is None else dim, "activate_dim"),
}
ROWS = (
    NpuOp("npu_swiglu", "SwiGlu", swi_glu, _SELF),
    NpuOp("npu_swiglu_backward", "SwiGluGrad", swi_glu_grad, {"y_grad": "grad_output", "x": "self"}),
    NpuOp("npu_clipped_swiglu", "ClippedSwiglu", clipped_swiglu),
    NpuOp("npu_geglu", "GeGluV2", geglu, _SELF),
    NpuOp("npu_gelu", "GeluV2", gelu, _SELF, shared=True),
    NpuOp("npu_gelu_backward", "GeluGradV2", gelu_grad, {"dy": "grad_output", "x": "self"}, shared=True),
    NpuOp("npu_fast_gelu", "FastGelu", fast_gelu, _SELF, shared=True),
    NpuOp("fast_gelu", "FastGelu", fast_gelu, _SELF, shared=True),
    NpuOp("npu_fast_gelu_backward", "FastGeluGrad", fast_gelu_grad, {"dy": "grad", "x": "self"}),
    NpuOp(
        "npu_gelu_quant",
        "GeluQuant",
        gelu_quant,
        _GELU_QUANT,
        # Given scales are not returned.
        outputs=(0,),
        extra=(None,),
        when=lambda given: given["quant_mode"] == "static",
        makes=_TYPED,
    ),
    NpuOp("npu_gelu_quant", "GeluQuant", gelu_quant, _GELU_QUANT, makes=_TYPED),
    *(
        NpuOp(op, "DequantSwigluQuant", dequant_swiglu_quant, _DEQUANT_SWIGLU, makes=_TYPED)
        for op in ("npu_dequant_swiglu_quant", "npu_inference::npu_dequant_swiglu_quant")
    ),
    NpuOp(
        "npu_swiglu_mx_quant",
        "SwigluMxQuant",
        swiglu_mx_quant,
        {"dst_type": made(ir_type, "dst_type")},
        makes=_TYPED,
    ),
)
