"""Quantize and dequantize: static, per row, per block, microscaled; and cast to types that torch lacks."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.core import dtypes
from torchair.ops.npu.common.groups import block_slots, group_ids, grouped_mx
from torchair.ops.npu.common.op_spec import NpuOp, fixed, made
from torchair.ops.npu.common.packing import operand, packed, scale_of
from torchair.ops.npu.dense.activation import dequantized
from torchair.ops.numerics.formats import (
    BF16,
    E2M1,
    FP4,
    FP16,
    HIF8,
    INT4,
    INT8,
    INT32,
    TOP_EXPONENT,
    asymmetric,
    blocked,
    divided,
    dynamic,
    ir_type,
    ir_type_or,
    largest,
    load,
    mx,
    paired,
    shared_exponent,
    static,
    store,
    unpack,
    unpaired,
    wide,
)

# Names of the types of `Quantize` in the IR.
QUANTIZE_TYPES = {
    INT8: "torch.qint8", dtypes.BY_NAME["UINT8"].runtime: "torch.quint8", INT32: "torch.qint32",
    HIF8: "torch_npu.hifloat8", dtypes.BY_NAME["FLOAT8_E5M2"].runtime: "torch.float8_e5m2",
    dtypes.BY_NAME["FLOAT8_E4M3FN"].runtime: "torch.float8_e4m3fn", INT4: "torch.quint4x2",
}  # fmt: skip


def along(values, ndim, axis):
    """Reshape a vector (or one number) to broadcast along one dim; a tensor of full rank is unchanged."""
    if values is None or values.ndim != 1:
        return values
    return values.reshape([-1 if dim == axis % ndim else 1 for dim in range(ndim)])


def _named_type(dtype):
    return next(number for number, name in QUANTIZE_TYPES.items() if name == dtype)


def quantize(x, scales, zero_points, *, dtype, axis=1):
    """Return round(x / scale + zero point), scales along `axis`."""
    kind = _named_type(dtype)
    scales, zero_points = along(scales, x.ndim, axis), along(zero_points, x.ndim, axis)
    return static(x, scales, zero_points, kind, divide=True)


def ascend_quant(x, scale, offset, *, sqrt_mode=False, round_mode="round", dst_type=INT8, axis=-1):
    """Return round(x · scale + offset); `round` of this op is half to even."""
    factor = wide(scale) * wide(scale) if sqrt_mode else wide(scale)
    factor, offset = along(factor, x.ndim, axis), along(offset, x.ndim, axis)
    return static(x, factor, offset, dst_type, mode="rint" if round_mode == "round" else round_mode)


def smoothed(x, smooth_scales, group_index):
    """Return x · smooth; the group of the row (cumulative ends) selects the row of `smooth`."""
    if smooth_scales is None:
        return wide(x)
    smooth = wide(smooth_scales)
    if group_index is None:
        return wide(x) * smooth
    rows = wide(x).flatten(0, -2)
    return (rows * smooth[group_ids(group_index, rows.shape[0])[0]]).reshape(x.shape)


def dynamic_quant(x, smooth_scales, group_index, *, dst_type=INT8):
    """Return (values, scale) per row."""
    return dynamic(smoothed(x, smooth_scales, group_index), dst_type)


def quantized_dims(x, quant_mode):
    """Return the dims that share a scale."""
    return {"pertoken": [x.ndim - 1], "perchannel": [x.ndim - 2], "pertensor": list(range(x.ndim))}[
        quant_mode
    ]


def dynamic_quant_any(
    x, smooth_scales, group_index, *, dst_type=INT8, is_symmetrical=False, quant_mode="pertoken",
    dst_type_max=0.0,
):  # fmt: skip
    """Return (values, scale, offset) per row, column or tensor; the offset of the symmetric form is 0."""
    y, dims = smoothed(x, smooth_scales, group_index), quantized_dims(x, quant_mode)
    if is_symmetrical:
        stored, scale = dynamic(y, dst_type, dims, dst_type_max)
        offset = torch.zeros_like(scale)
    else:
        stored, scale, offset = asymmetric(y, dst_type, dims)
    if quant_mode == "pertensor":
        return stored, scale.reshape(1), offset.reshape(1)
    return stored, scale, offset


def group_quant(x, scale, group_index, offset, *, dst_type=INT8):
    """Return round(x · scale[g] + offset), g the group of the row (cumulative ends)."""
    ids, _ = group_ids(group_index, x.shape[0])
    return static(x, scale[ids], offset, dst_type)


def ascend_anti_quant(x, scale, offset, *, dst_type=FP16, sqrt_mode=False):
    """Return (x + offset) · scale; bytes are hifloat8."""
    values = load(x)
    values = values if offset is None else values + wide(offset)
    scale = wide(scale) * wide(scale) if sqrt_mode else wide(scale)
    return (values * scale).to(dtypes.to_torch(dst_type))


def anti_mx_quant(x, mxscale, *, axis=-1, dst_type=BF16):
    """Return microscaled values times the power of two of their block."""
    return (wide(x) * unpaired(mxscale, axis, x.shape[axis])).to(dtypes.to_torch(dst_type))


def tiled(x, rows, columns):
    """Split the last two dims into zero-padded tiles: [..., row tiles, rows, column tiles, columns]."""
    padded = F.pad(x, (0, -x.shape[-1] % columns, 0, -x.shape[-2] % rows))
    return padded.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows))


def untiled(tiles, like):
    """Invert `tiled`."""
    flat = tiles.flatten(-2).flatten(-3, -2)
    return flat[..., : like.shape[-2], : like.shape[-1]]


def dynamic_block_quant(
    x,
    *,
    min_scale=0.0,
    round_mode="rint",
    dst_type=35,
    row_block_size=1,
    col_block_size=128,
    dst_type_max=0.0,
):
    """Return (values, scale) with one scale per tile of the last two dims."""
    tiles = tiled(wide(x), row_block_size, col_block_size)
    scale = (tiles.abs().amax((-3, -1)) / largest(dst_type, dst_type_max)).clamp(min=min_scale)
    values = untiled(divided(tiles, scale.unsqueeze(-1).unsqueeze(-3)), x)
    return store(values, dst_type, round_mode), scale


def grouped_dynamic_block_quant(
    x, group_list, *, min_scale=0.0, round_mode="rint", dst_type=35, row_block_size=1, col_block_size=128,
    group_list_type=0, dst_type_max=0.0,
):  # fmt: skip
    """Compute `dynamic_block_quant` with tiles inside groups: scale rows are rows // block + groups."""
    rows = x.shape[0]
    slot = block_slots(group_list, rows, row_block_size, group_list_type)
    blocks = blocked(wide(x), col_block_size)
    peak = blocks.abs().amax(-1)
    scale = peak.new_zeros(rows // row_block_size + group_list.shape[0], peak.shape[1])
    scale = scale.scatter_reduce(0, slot.unsqueeze(-1).expand(peak.shape), peak, "amax")
    scale = (scale / largest(dst_type, dst_type_max)).clamp(min=min_scale)
    values = divided(blocks, scale[slot].unsqueeze(-1)).flatten(-2)[..., : x.shape[1]]
    return store(values, dst_type, round_mode), scale


def dynamic_mx_quant(
    x, *, axis=-1, round_mode="rint", dst_type=40, blocksize=32, scale_alg=0, dst_type_max=0.0,
    max_low_bound=0.0,
):  # fmt: skip
    """Return (values, paired scales) with a power of two per block along `axis`."""
    return mx(
        x, dst_type, axis, block=blocksize, scale_alg=scale_alg, maximum=dst_type_max, mode=round_mode,
        lowest=max_low_bound,
    )  # fmt: skip


def dynamic_mx_quant_with_dual_axis(x, *, round_mode="rint", dst_type=40, scale_alg=0, dst_type_max=0.0):
    """Quantize along the last dim, and along the second last: two pairs."""
    rest = {"scale_alg": scale_alg, "maximum": dst_type_max, "mode": round_mode}
    made = *mx(x, dst_type, -1, **rest), *mx(x, dst_type, -2, **rest)
    return tuple(map(own_memory, made))


def dynamic_block_mx_quant(x, *, round_mode="rint", dst_type=40, scale_alg=0, dst_type_max=0.0):
    """Use a power of two per 32 × 32 tile: (values, scales by the last dim, scales by the second last)."""
    tiles = tiled(x.float(), 32, 32)
    scale = shared_exponent(tiles.abs().amax((-3, -1)), dst_type, scale_alg, dst_type_max)
    factor = torch.exp2(127.0 - scale.float()).unsqueeze(-1).unsqueeze(-3)
    stored = store(untiled(tiles * factor, x), dst_type, round_mode)
    by_row = scale.repeat_interleave(32, -2)[..., : x.shape[-2], :]
    by_column = scale.repeat_interleave(32, -1)[..., : x.shape[-1]].transpose(-1, -2)
    return stored, own_memory(paired(by_row, x.ndim - 1)), own_memory(paired(by_column, x.ndim - 2))


def own_memory(part):
    """Return a result laid out as by a kernel: contiguous, in dims of one element too."""
    return part.clone(memory_format=torch.contiguous_format)


def dynamic_dual_level_mx_quant(
    x, smooth_scale, *, round_mode="rint", level0_block_size=512, level1_block_size=32
):
    """Use a float scale per 512 values and fp4 with a power of two per 32: (values, level 0, level 1)."""
    y = wide(x) if smooth_scale is None else wide(x) * wide(smooth_scale)
    blocks = blocked(y, level0_block_size)
    level0 = blocks.abs().amax(-1) / largest(E2M1)
    fine = divided(blocks, level0.unsqueeze(-1)).flatten(-2)[..., : x.shape[-1]].to(x.dtype)
    stored, level1 = mx(fine, E2M1, block=level1_block_size, mode=round_mode)
    return stored, level0, level1


def grouped_dynamic_mx_quant(
    x, group_index, *, round_mode="rint", dst_type=35, blocksize=32, scale_alg=0, dst_type_max=0.0
):
    """Quantize blocks of rows inside each group (cumulative ends) with a power of two per column."""
    return grouped_mx(
        x,
        group_index,
        0,
        dst_type,
        block=blocksize,
        scale_alg=scale_alg,
        maximum=dst_type_max,
        mode=round_mode,
    )


def quant_max(x, scale, group_list, *, round_mode="rint", dst_type=35):
    """Return (x / scale, largest magnitude) of the tensor or of each group of rows (cumulative ends)."""
    if group_list is None:
        return static(x, scale, None, dst_type, divide=True, mode=round_mode), x.abs().amax().reshape(1)
    ids, covered = group_ids(group_list, x.shape[0])
    per_row = scale.reshape(-1)[ids].reshape(-1, *(1,) * (x.ndim - 1))
    peak = torch.where(covered, x.flatten(1).abs().amax(1), 0).to(x.dtype)
    amax = x.new_zeros(group_list.shape[0]).scatter_reduce(0, ids, peak, "amax")
    return static(x, per_row, None, dst_type, divide=True, mode=round_mode), amax


def rotate_quant(
    x,
    rotation,
    alpha,
    *,
    y_dtype=0,
    axis=-1,
    round_mode="rint",
    scale_alg=0,
    dst_type_max=0.0,
    transpose_y=False,
):
    """Multiply every piece of a row with the rotation, then quantize per row, or microscaled for small
    floats.

    `alpha` clips: this share of the largest magnitude maps to the maximum of the type.
    """
    assert not transpose_y, "the result is not transposed"
    size = rotation.shape[0]
    y = (wide(x).unflatten(-1, (-1, size)) @ wide(rotation)).flatten(-2)
    if y_dtype in TOP_EXPONENT:
        return mx(y, y_dtype, axis, scale_alg=scale_alg, maximum=dst_type_max, mode=round_mode)
    share = 1.0 if alpha is None else wide(alpha)
    scale = y.abs().amax(-1, keepdim=True) * share / largest(y_dtype, dst_type_max)
    return store(divided(y, scale), y_dtype, round_mode), scale.squeeze(-1)


def flat_quant(x, kronecker_p1, kronecker_p2, *, clip_ratio=1.0, dst_dtype=INT32, dst_type_max=0.0):
    """Return p1 @ x @ p2 as int4 with a scale per matrix, or as microscaled fp4 over the flat matrix."""
    z = wide(kronecker_p1) @ wide(x) @ wide(kronecker_p2)
    if dst_dtype in FP4:
        return mx(z.flatten(1), dst_dtype, maximum=dst_type_max)
    scale = z.abs().amax((-2, -1)) / (largest(INT4, dst_type_max) * clip_ratio)
    return store(divided(z, scale.reshape(-1, 1, 1)), INT4), scale


# Dequantization parameters in one word: the float in bits 0-31, a mark in bit 46, the offset in bits 37-45.
_FLOAT_BITS, _MARK, _OFFSET_AT, _OFFSET_BITS, _DROPPED = 0xFFFFFFFF, 1 << 46, 37, 0x1FF, 13


def trans_quant_param(scale, offset, *, round_mode=0):
    """Return scale (19 bits of it, truncated or rounded) and offset packed into int64."""
    bits = scale.float().view(torch.int32).to(torch.int64) & _FLOAT_BITS
    if round_mode == 1:
        bits = bits + (1 << (_DROPPED - 1))
    packed = ((bits >> _DROPPED << _DROPPED) & _FLOAT_BITS) | _MARK
    if offset is None:
        return packed
    whole = torch.round(offset.float()).clamp(-256, 255).to(torch.int64) & _OFFSET_BITS
    return packed | (whole << _OFFSET_AT)


def unpacked_scale(scale):
    """Return the float of a packed scale, or another scale in the dtype of the arithmetic."""
    if scale.dtype not in (torch.int64, torch.uint64):
        return wide(scale)
    return (scale.view(torch.int64) & _FLOAT_BITS).to(torch.int32).view(torch.float32)


def dequant_bias(x, weight_scale, activate_scale, bias, *, output_dtype):
    """Return (x + int bias) · weight scale · row scale (+ float bias)."""
    return dequantized(x, weight_scale, activate_scale, bias).to(dtypes.to_torch(output_dtype))


def dtype_cast(self, dtype, input_dtype=None):
    """Cast between torch's types and those it lacks; `input_dtype` is the type of packed bytes or words."""
    source, kind = ir_type(input_dtype), ir_type(dtype)
    if source in dtypes.SMALL:
        self = unpack(self, source)
    values = load(self) if source == HIF8 else self
    if kind == HIF8 or kind in dtypes.SMALL:
        return packed(store(wide(values), kind), kind, torch.uint8)
    return values.to(dtypes.to_torch(kind))


def dtype_cast_backward(grad, dtype, grad_dtype=None, input_dtype=None):
    """Return the gradient in the type of the forward's input."""
    return dtype_cast(grad, dtype, grad_dtype)


def plain_cast(self, dtype):
    """Cast to a torch dtype."""
    return self.to(dtype)


def plain_cast_backward(grad, dtype):
    """Return the gradient in a torch dtype."""
    return grad.to(dtype)


def _no_alg(alg):
    return 0 if alg is None else alg


def _no_max(value):
    return 0.0 if value is None else value


def _per_token(given):
    """Return whether the first version of the op applies, which lacks int4."""
    is_plain = given["quant_mode"] == "pertoken" and given["dst_type_max"] == 0
    return is_plain and ir_type(given["dst_type"]) != INT4


def _flat_type(kind):
    return kind if kind in FP4 else INT4


_TYPED = {0: "dst_type"}


_INT8 = {"dst_type": made(ir_type_or(INT8), "dst_type")}
_KIND = {"dst_type": made(ir_type, "dst_type")}
_ALG = {"scale_alg": made(_no_alg, "scale_alg"), "dst_type_max": made(_no_max, "dst_type_max")}
_DYNAMIC = {"x": "input"}
_QUANTIZE = {"x": "self", "offset": "zero_points", "scale": "scales"}
_QUANTIZE_DIVIDE = {"x": "self", "dtype": made(lambda code: QUANTIZE_TYPES[ir_type(code)], "dtype")}
ROWS = (
    NpuOp(
        "npu_quantize",
        "",
        quantize,
        _QUANTIZE_DIVIDE,
        when=lambda given: given["div_mode"] and ir_type(given["dtype"]) == INT4,
        makes={0: fixed(INT4)},
        ignored=("div_mode",),
    ),
    NpuOp(
        "npu_quantize",
        "Quantize",
        quantize,
        _QUANTIZE_DIVIDE,
        when=lambda given: given["div_mode"],
        makes={0: made(_named_type, "dtype")},
        ignored=("div_mode",),
    ),
    NpuOp(
        "npu_quantize",
        "AscendQuantV2",
        ascend_quant,
        _QUANTIZE
        | {
            "dst_type": made(ir_type, "dtype"),
            "axis": made(lambda axis: min(axis, -1), "axis"),
            "round_mode": fixed("round"),
            "sqrt_mode": fixed(False),
        },
        makes=_TYPED,
        ignored=("div_mode",),
    ),
    NpuOp(
        "npu_dynamic_quant",
        "DynamicQuant",
        dynamic_quant,
        _DYNAMIC | _INT8,
        when=_per_token,
        makes=_TYPED,
        ignored=("quant_mode", "dst_type_max"),
    ),
    NpuOp(
        "npu_dynamic_quant",
        "DynamicQuantV2",
        dynamic_quant_any,
        _DYNAMIC | _INT8 | {"is_symmetrical": fixed(True)},
        outputs=(0, 1),
        makes=_TYPED,
    ),
    NpuOp(
        "npu_dynamic_quant_asymmetric",
        "DynamicQuantV2",
        dynamic_quant_any,
        _DYNAMIC | _INT8 | {"is_symmetrical": fixed(False)},
        makes=_TYPED,
    ),
    NpuOp(
        "npu_group_quant",
        "GroupQuant",
        group_quant,
        {"dst_type": made(ir_type_or(INT8), "dst_dtype")},
        makes=_TYPED,
    ),
    NpuOp(
        "npu_anti_quant",
        "AscendAntiQuantV2",
        ascend_anti_quant,
        {"dst_type": made(ir_type_or(FP16), "dst_dtype"), "sqrt_mode": fixed(False)},
        holds={"x": operand("x", "src_dtype", of_bytes=HIF8)},
    ),
    NpuOp(
        "npu_anti_mx_quant",
        "AntiMxQuant",
        anti_mx_quant,
        {"dst_type": made(ir_type_or(BF16), "dst_type")},
        holds={"x": operand("x", "src_type", of_bytes=E2M1), "mxscale": scale_of("mxscale")},
    ),
    NpuOp("npu_dynamic_block_quant", "DynamicBlockQuant", dynamic_block_quant, _KIND, makes=_TYPED),
    NpuOp(
        "npu_grouped_dynamic_block_quant",
        "GroupedDynamicBlockQuant",
        grouped_dynamic_block_quant,
        _KIND,
        makes=_TYPED,
    ),
    NpuOp(
        "npu_dynamic_mx_quant",
        "DynamicMxQuant",
        dynamic_mx_quant,
        _DYNAMIC | _KIND | _ALG | {"blocksize": "block_size"},
        makes=_TYPED,
    ),
    NpuOp(
        "npu_dynamic_mx_quant_with_dual_axis",
        "DynamicMxQuantWithDualAxis",
        dynamic_mx_quant_with_dual_axis,
        _DYNAMIC | _KIND | _ALG,
        makes={0: "dst_type", 2: "dst_type"},
    ),
    NpuOp(
        "npu_dynamic_block_mx_quant",
        "DynamicBlockMxQuant",
        dynamic_block_mx_quant,
        _DYNAMIC | _KIND,
        makes=_TYPED,
    ),
    NpuOp(
        "npu_dynamic_dual_level_mx_quant",
        "DynamicDualLevelMxQuant",
        dynamic_dual_level_mx_quant,
        _DYNAMIC,
        makes={0: fixed(E2M1)},
    ),
    NpuOp(
        "npu_grouped_dynamic_mx_quant",
        "GroupedDynamicMxQuant",
        grouped_dynamic_mx_quant,
        _KIND | _ALG,
        makes=_TYPED,
    ),
    NpuOp("npu_quant_max", "QuantMax", quant_max, {"dst_type": made(ir_type, "dst_dtype")}, makes=_TYPED),
    NpuOp(
        "npu_rotate_quant",
        "RotateQuant",
        rotate_quant,
        {"y_dtype": made(ir_type_or(INT8), "dst_dtype"), **_ALG},
        makes={0: "y_dtype"},
    ),
    NpuOp(
        "npu_kronecker_quant",
        "FlatQuant",
        flat_quant,
        {"dst_dtype": made(ir_type_or(INT32), "dst_dtype")},
        makes={0: made(_flat_type, "dst_dtype")},
    ),
    NpuOp("npu_trans_quant_param", "TransQuantParamV2", trans_quant_param),
    NpuOp(
        "npu_dequant_bias",
        "DequantBias",
        dequant_bias,
        {"activate_scale": "activation_scale", "output_dtype": made(ir_type_or(FP16), "output_dtype")},
    ),
)
PLAIN = {
    "npu_dtype_cast": dtype_cast,
    "npu_dtype_cast_backward": dtype_cast_backward,
    "_npu_dtype_cast": plain_cast,
    "_npu_dtype_cast_backward": plain_cast_backward,
}
