"""Compute matrix products with quantized operands or weights, fused epilogues, LoRA and quantized
convolution.

Integer products are exact; all other arithmetic is float32 until the result is stored.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchair.core import dtypes
from torchair.core.kernel_params import Ints
from torchair.ops.npu.common.op_spec import InPlaceOp, NpuOp, dtype_of, fixed, made
from torchair.ops.npu.common.packing import operand, scale_of, weight
from torchair.ops.npu.dense.quant import unpacked_scale
from torchair.ops.numerics.formats import (
    BF16,
    E2M1,
    FP16,
    HIF8,
    INT4,
    INT8,
    dynamic,
    ir_type,
    ir_type_or,
    load,
    static,
    store,
    unpaired,
    wide,
)

EPILOGUES = {
    "": lambda y, _: y,
    "add": lambda y, x3: y + x3,
    "mul": lambda y, x3: y * x3,
    "relu": lambda y, _: torch.relu(y),
    "gelu_erf": lambda y, _: F.gelu(y),
    "gelu_tanh": lambda y, _: F.gelu(y, approximate="tanh"),
}


def packed_group_size(sizes):
    """Return [m, n, k] packed in one number."""
    if not sizes:
        return 0
    m, n, k = sizes if len(sizes) == 3 else (0, 0, *sizes)[-3:]
    return (m << 32) + (n << 16) + k


def group_of_k(group_size):
    """Return the k of a packed group size; 0 if there is none."""
    return group_size & 0xFFFF if group_size > 0 else 0


def integer_product(a, b):
    """Return the exact a @ b of integers, as float32 or double for the following arithmetic."""
    if a.ndim == b.ndim == 2 and a.device.type == "cpu" and a.dtype == b.dtype == torch.int8:
        return torch._int_mm(a.contiguous(), b)
    return torch.matmul(a.double(), b.double()).to(torch.int32)


def product(a, b):
    """Return a @ b: exact for integers, otherwise in float32."""
    if not a.is_floating_point() and not b.is_floating_point():
        return integer_product(a, b)
    return torch.matmul(wide(a), wide(b))


def decoded(x):
    """Decode small floats to float32 (bytes are hifloat8); return other tensors unchanged."""
    is_small = x.is_floating_point() and x.dtype.itemsize == 1
    return load(x) if is_small or x.dtype == torch.uint8 else x


def is_microscaled(scale, x):
    """Return whether a scale has one more dim than its operand, the last with pairs of powers of two."""
    return scale is not None and scale.ndim == x.ndim + 1 and scale.dtype.itemsize == 1


def scaled_blocks(x, scale, inner):
    """Return x times the scales of its blocks. `inner` is the dim that is summed over."""
    if is_microscaled(scale, x):
        pairs = -(-x.shape[inner] // 64)
        axis = inner if scale.shape[:-1][inner] == pairs else -3 - inner
        full = unpaired(scale, axis % x.ndim, x.shape[inner])
        return wide(x) * (full if axis == inner else full.transpose(-1, -2))
    for dim in (-1, -2):
        times = x.shape[dim] // scale.shape[dim]
        scale = scale.repeat_interleave(times, dim)
    return wide(x) * scale


def has_blocks(scale, x, inner):
    """Return whether the scale varies along the dim that is summed over."""
    return scale is not None and (
        is_microscaled(scale, x) or (scale.ndim == x.ndim >= 2 and scale.shape[inner] > 1)
    )


def with_bias(acc, bias):
    """Add an integer bias before the scales."""
    return acc if bias is None or bias.is_floating_point() else acc + bias


def result(y, kind, offset=None):
    """Return the result in its type; an offset applies to int8."""
    y = y if offset is None else y + wide(offset)
    return store(y, kind) if kind == INT8 else y.to(dtypes.to_torch(kind))


def rows_scale(scale):
    """Return a scale per row that broadcasts over columns."""
    return wide(scale).reshape(*scale.shape, 1) if scale.ndim == 1 else wide(scale)


# Plain products


def mat_mul(x1, x2, bias, *, transpose_x1=False, transpose_x2=False):
    """Return the 2-D product of possibly transposed operands, plus a bias."""
    y = (x1.t() if transpose_x1 else x1) @ (x2.t() if transpose_x2 else x2)
    return y if bias is None else y + bias


def fused_mat_mul(
    x1, x2, bias, x3, *, transpose_x1=False, transpose_x2=False, enable_hf32=False, fused_op_type=""
):
    """Compute product, bias, and one more op."""
    y = torch.matmul(x1.mT if transpose_x1 else x1, x2.mT if transpose_x2 else x2)
    return EPILOGUES[fused_op_type](y if bias is None else y + bias, x3)


def permuted(x, perm):
    """Permute the dims of x; an empty order returns x."""
    return x.permute(perm) if len(perm) else x


def transpose_batch_mat_mul(
    x1, x2, bias, scale, *, perm_x1=(), perm_x2=(), perm_y=(), enable_hf32=False, batch_split_factor=1
):
    """Return the permuted batched product of permuted operands: [M, B, N]; int8 with a scale."""
    y = product(permuted(x1, perm_x1), permuted(x2, perm_x2))
    y = permuted(y if bias is None else y + bias, perm_y)
    if scale is not None:
        flat = y.flatten(1).unsqueeze(1)
        return store(flat * unpacked_scale(scale), INT8)
    return split_batch(y, batch_split_factor).to(x1.dtype)


def split_batch(y, factor):
    """Reshape [M, B, N] to [factor, M, B·N / factor]."""
    return y if factor == 1 else y.flatten(1).unflatten(1, (factor, -1)).transpose(0, 1)


def transpose_quant_batch_mat_mul(
    x1, x2, bias, x1_scale, x2_scale, *, dtype, group_size=0, perm_x1=(1, 0, 2), perm_x2=(0, 1, 2),
    perm_y=(1, 0, 2), batch_split_factor=1,
):  # fmt: skip
    """Compute `transpose_batch_mat_mul` of small floats or int8, scaled per row, column or block."""
    a, b = permuted(decoded(x1), perm_x1), permuted(decoded(x2), perm_x2)
    if is_microscaled(x1_scale, x1) and is_microscaled(x2_scale, x2):
        a = scaled_blocks(a, permuted(x1_scale, (*perm_x1, 3)), -1)
        b = scaled_blocks(b, permuted(x2_scale, (*perm_x2, 3)), -2)
        y = torch.matmul(a, b)
    else:
        y = wide(product(a, b))
        y = y if x1_scale is None else y * rows_scale(x1_scale)
        y = y if x2_scale is None else y * wide(x2_scale)
    y = permuted(y if bias is None else y + bias, perm_y)
    return split_batch(y, batch_split_factor).to(dtypes.to_torch(dtype))


# Quantized products


def quant_batch_matmul(
    x1, x2, scale, offset, bias, pertoken_scale, *, dtype, transpose_x1=False, transpose_x2=False
):
    """Return (x1 @ x2 + int bias) · scale · row scale + float bias, of int8 or int4."""
    a, b = x1.mT if transpose_x1 else x1, x2.mT if transpose_x2 else x2
    y = wide(with_bias(product(a, b), bias)) * unpacked_scale(scale)
    y = y if pertoken_scale is None else y * rows_scale(pertoken_scale)
    y = y + bias if bias is not None and bias.is_floating_point() else y
    return result(y, dtype, offset if dtype == INT8 else None)


def block_scaled_product(x1, x2, bias, x1_scale, x2_scale, y_scale, group_size):
    """Return the product of operands with scales per row, column, group along K, tile or 32 values."""
    a, b = decoded(x1), decoded(x2)
    x2_scale = (
        None if x2_scale is None else x2_scale if is_microscaled(x2_scale, b) else unpacked_scale(x2_scale)
    )
    if x2_scale is not None and y_scale is not None:
        x2_scale = x2_scale * unpacked_scale(y_scale)
    in_blocks = has_blocks(x2_scale, b, -2), has_blocks(x1_scale, a, -1)
    if any(in_blocks):
        b = scaled_blocks(b, x2_scale, -2) if in_blocks[0] else wide(b)
        a = scaled_blocks(a, x1_scale, -1) if in_blocks[1] else wide(a)
    y = wide(with_bias(product(a, b), bias))
    y = y if x2_scale is None or in_blocks[0] else y * x2_scale
    y = y if x1_scale is None or in_blocks[1] else y * rows_scale(x1_scale)
    return y + bias if bias is not None and bias.is_floating_point() else y


def quant_batch_matmul_blocks(
    x1, x2, bias, x1_scale, x2_scale, y_scale, x1_offset, x2_offset, y_offset, x2_table, *,
    dtype, compute_type=-1, transpose_x1=False, transpose_x2=False, group_size=-1, types,
):  # fmt: skip
    """Multiply small floats, or int8 with int4 weights in groups along K.

    With int4 weights, bias and `x2_offset` only compensate how the device treats int8 operands; they have no
    effect here.
    """
    assert x1_offset is None and y_offset is None and x2_table is None, "these are for other devices"
    a, b = x1.mT if transpose_x1 else x1, x2.mT if transpose_x2 else x2
    mends = types.get("x2") == INT4
    y = block_scaled_product(a, b, None if mends else bias, x1_scale, x2_scale, y_scale, group_size)
    return result(y, dtype, None if mends or dtype != INT8 else x2_offset)


def fused_quant_mat_mul(
    x1, x2, bias, x1_scale, x2_scale, y_scale, x1_offset, x2_offset, y_offset, x2_table, x3, *,
    dtype, compute_type=-1, transpose_x1=False, transpose_x2=False, group_size=-1, fused_op_type="",
):  # fmt: skip
    """Compute a quantized product, and one more op."""
    assert x1_offset is None and y_offset is None and x2_table is None, "these are for other devices"
    a, b = x1.mT if transpose_x1 else x1, x2.mT if transpose_x2 else x2
    y = block_scaled_product(a, b, bias, x1_scale, x2_scale, y_scale, group_size)
    return result(EPILOGUES[fused_op_type](y, x3), dtype, x2_offset if dtype == INT8 else None)


def quantized_rows(x, x_scale, x_offset, smooth_scale, mode):
    """Return (integers, scale): x quantized with a given scale, or per row."""
    y = wide(x) if smooth_scale is None else wide(x) * wide(smooth_scale)
    if x_scale is None:
        dims = -1 if mode == "pertoken" else list(range(y.ndim))
        stored, scale = dynamic(y, INT8, dims)
        return stored, scale.unsqueeze(-1) if mode == "pertoken" else scale
    scale = rows_scale(x_scale) if mode == "pertoken" else wide(x_scale)
    return static(y, scale, x_offset, INT8, divide=True), scale


def quant_matmul_dequant(
    x, quantized_weight, weight_scale, bias, x_scale, x_offset, smooth_scale, *, x_quant_mode="pertoken",
    transpose_weight=True,
):  # fmt: skip
    """Quantize x, multiply with an int8 weight, and return the dtype of x."""
    rows, scale = quantized_rows(x, x_scale, x_offset, smooth_scale, x_quant_mode)
    weight = quantized_weight.mT if transpose_weight else quantized_weight
    acc = with_bias(product(rows, weight), bias)
    if x_offset is not None:
        acc = acc - wide(x_offset) * weight.sum(-2, dtype=torch.float32)
    y = wide(acc) * unpacked_scale(weight_scale) * scale
    return (y + bias if bias is not None and bias.is_floating_point() else y).to(x.dtype)


def quant_matmul_reduce_sum(
    x1, x2, dims: Ints, bias, x1_scale, x2_scale, y_scale, x1_offset, x2_offset, y_offset, x2_table, *,
    dtype, compute_type=-1, transpose_x1=False, transpose_x2=False, group_size=-1, keep_dims=False,
):  # fmt: skip
    """Return dequantized products summed over the batch."""
    extras = (bias, y_scale, x1_offset, x2_offset, y_offset, x2_table)
    assert all(extra is None for extra in extras), "these are for other devices"
    y = wide(product(x1.mT if transpose_x1 else x1, x2.mT if transpose_x2 else x2))
    y = y if x1_scale is None else y * wide(x1_scale).unsqueeze(-1)
    y = y if x2_scale is None else y * wide(x2_scale)
    return y.sum(dims, keepdim=keep_dims).to(dtypes.to_torch(dtype))


def quant_batch_matmul_inplace_add(
    x1, x2, x2_scale, y, x1_scale, *, transpose_x1=False, transpose_x2=False, group_size=0
):
    """Return y plus a dequantized product."""
    a, b = x1.mT if transpose_x1 else x1, x2.mT if transpose_x2 else x2
    return (y + block_scaled_product(a, b, None, x1_scale, x2_scale, None, group_size)).to(y.dtype)


def weight_numbers(weight, scale, offset, inner, group=0):
    """Return (weight + offset) · scale [K, N]; scales of groups along K are repeated."""
    values = wide(decoded(weight))
    if is_microscaled(scale, values):
        return scaled_blocks(values, scale, -2)
    shifted = values if offset is None else values + _per_group(wide(offset), inner, group)
    return shifted * _per_group(wide(scale), inner, group)


def _per_group(part, inner, group):
    return part.repeat_interleave(group, -2)[..., :inner, :] if group > 0 and part.ndim >= 2 else part


def weight_quant_batch_matmul(
    x, weight, antiquant_scale, antiquant_offset, quant_scale, quant_offset, bias, *, transpose_x=False,
    transpose_weight=False, inner_precise=0, antiquant_group_size=0, dtype=-1,
):  # fmt: skip
    """Return x @ dequantized weight + bias, in the dtype of x, or quantized to int8."""
    a, b = x.mT if transpose_x else x, weight.mT if transpose_weight else weight
    numbers = weight_numbers(b, antiquant_scale, antiquant_offset, a.shape[-1], antiquant_group_size)
    y = torch.matmul(wide(a), numbers)
    y = y if bias is None else y + bias
    if quant_scale is not None:
        return static(y, unpacked_scale(quant_scale), quant_offset, INT8)
    return y.to(x.dtype if dtype == -1 else dtypes.to_torch(dtype))


def quant_conv2d(
    x, filter, scale, bias, offset, *, dtype, strides, pads, dilations=(1, 1, 1, 1), groups=1,
    data_format="NHWC", offset_x=0, round_mode="rint",
):  # fmt: skip
    """Convolve int8 (padded with `offset_x`) or small floats, times a scale per output channel."""
    assert data_format == "NCHW", "torch's data format is NCHW"
    top, bottom, left, right = pads
    padded = F.pad(wide(decoded(x)).double(), (left, right, top, bottom), value=float(offset_x))
    y = F.conv2d(padded, wide(decoded(filter)).double(), None, strides[2:], 0, dilations[2:], groups)
    channels = (1, -1, 1, 1)
    y = y if bias is None else y + bias.double().reshape(channels)
    y = y.float() * unpacked_scale(scale).reshape(channels)
    kind = dtypes.to_torch(dtype)
    return (
        store(y if offset is None else y + offset.reshape(channels), dtype, round_mode)
        if kind == torch.int8
        else y.to(kind)
    )


def add_lora(y, x, weightB, indices, weightA, *, layer_idx=0, scale=1e-3, y_offset=0, y_slice_size=-1):
    """Return y plus scale · x @ Aᵀ @ Bᵀ of each row's adapter, in a slice of the columns; an index without an
    adapter adds nothing.
    """
    adapters = weightB.shape[0]
    chosen = indices.to(torch.int64)
    known = (chosen >= 0) & (chosen < adapters)
    chosen = torch.where(known, chosen, 0)
    inner = wide(x)
    if weightA is not None:
        inner = torch.einsum("bh,brh->br", inner, wide(weightA[:, layer_idx][chosen]))
    added = torch.einsum("br,bnr->bn", inner, wide(weightB[:, layer_idx][chosen])) * scale
    width = y.shape[1] - y_offset if y_slice_size < 0 else y_slice_size
    added = torch.where(known.unsqueeze(-1), added, 0.0)[:, :width]
    full = F.pad(added, (y_offset, y.shape[1] - y_offset - width))
    return (wide(y) + full).to(y.dtype)


_PERMS = {name: made(lambda perm: list(perm) if perm else [0, 1, 2], name) for name in ("perm_x1", "perm_x2")}
_TURNED = made(lambda perm: list(perm) if perm else [1, 0, 2], "perm_y")
_OUTPUT = made(ir_type_or(INT8), "output_dtype")
_GROUP = made(packed_group_size, "group_sizes")
_CODES = ("x1_dtype", "x2_dtype", "pertoken_scale_dtype", "scale_dtype")
_V4 = {
    "x1_scale": "pertoken_scale",
    "x2_scale": "scale",
    "x2_offset": "offset",
    "dtype": _OUTPUT,
    "group_size": _GROUP,
}
_ADDED = {"y": "self", "group_size": _GROUP}
_ADDED_CODES = ("x1_dtype", "x2_dtype", "x1_scale_dtype", "x2_scale_dtype")


def _is_integer(given):
    """Return whether operands are int8 with int8 or int4 with int4, without groups along K."""
    plain = dtype_of(given["x1"]), dtype_of(given["x2"])
    return plain in ((torch.int8, torch.int8), (torch.int32, torch.int32)) and not given["group_sizes"]


_HELD = {
    "x1": operand("x1", "x1_dtype", of_bytes=E2M1),
    "x2": weight("x2", "x1", ("x2_dtype", "x1_dtype"), of_bytes=E2M1, flag="transpose_x2"),
}
_HELD_SCALED = _HELD | {"x1_scale": scale_of("x1_scale"), "x2_scale": scale_of("x2_scale")}
ROWS = (
    NpuOp(
        "npu_linear",
        "MatMul",
        mat_mul,
        {"x1": "input", "x2": "weight", "transpose_x2": fixed(True)},
        shared=True,
    ),
    NpuOp("npu_fused_matmul", "FusedMatMul", fused_mat_mul),
    NpuOp(
        "npu_transpose_batchmatmul",
        "TransposeBatchMatMul",
        transpose_batch_mat_mul,
        {"x1": "input", "x2": "weight", "perm_y": _TURNED, **_PERMS},
    ),
    NpuOp(
        "npu_transpose_quant_batchmatmul",
        "TransposeQuantBatchMatMul",
        transpose_quant_batch_mat_mul,
        {
            "dtype": made(ir_type, "dtype"),
            "group_size": _GROUP,
            "perm_x1": made(lambda perm: list(perm) if perm else [1, 0, 2], "perm_x1"),
            "perm_x2": _PERMS["perm_x2"],
            "perm_y": _TURNED,
        },
        holds={
            "x1": operand("x1", "x1_dtype", of_bytes=HIF8),
            "x2": operand("x2", "x2_dtype", of_bytes=HIF8),
            "x1_scale": scale_of("x1_scale"),
            "x2_scale": scale_of("x2_scale"),
        },
    ),
    NpuOp(
        "npu_quant_matmul",
        "QuantBatchMatmulV3",
        quant_batch_matmul,
        {"dtype": _OUTPUT},
        when=_is_integer,
        holds=_HELD,
        ignored=(*_CODES, "group_sizes", "y_scale"),
    ),
    NpuOp(
        "npu_quant_matmul",
        "QuantBatchMatmulV4",
        quant_batch_matmul_blocks,
        _V4,
        holds=_HELD | {"x1_scale": scale_of("pertoken_scale"), "x2_scale": scale_of("scale")},
        ignored=_CODES,
    ),
    NpuOp(
        "npu_inference::npu_fused_quant_matmul",
        "FusedQuantMatMul",
        fused_quant_mat_mul,
        _V4,
        holds=_HELD,
        ignored=(*_CODES, "x3_dtype"),
    ),
    NpuOp(
        "npu_quant_matmul_dequant", "QuantMatmulDequant", quant_matmul_dequant, {"x_quant_mode": "quant_mode"}
    ),
    NpuOp(
        "npu_quant_matmul_reduce_sum",
        "QuantMatmulReduceSum",
        quant_matmul_reduce_sum,
        {"dims": fixed([0]), "dtype": fixed(BF16)},
    ),
    NpuOp(
        "npu_add_quant_matmul",
        "QuantBatchMatmulInplaceAdd",
        quant_batch_matmul_inplace_add,
        _ADDED,
        copies=("self",),
        holds=_HELD_SCALED,
        ignored=_ADDED_CODES,
    ),
    NpuOp(
        "npu_add_quant_matmul_",
        "QuantBatchMatmulInplaceAdd",
        quant_batch_matmul_inplace_add,
        _ADDED,
        writes={"self": 0},
        holds=_HELD_SCALED,
        ignored=_ADDED_CODES,
    ),
    NpuOp(
        "npu_weight_quant_batchmatmul",
        "WeightQuantBatchMatmulV2",
        weight_quant_batch_matmul,
        holds={"weight": weight("weight", "x", of_bytes=E2M1, flag="transpose_weight")},
        ignored=("weight_dtype",),
    ),
    NpuOp(
        "npu_quant_conv2d",
        "QuantConv2D",
        quant_conv2d,
        {
            "x": "input",
            "filter": "weight",
            "dtype": made(ir_type_or(FP16), "output_dtype"),
            "strides": made(lambda s: [1, 1, s[0], s[-1]], "strides"),
            "dilations": made(lambda d: [1, 1, d[0], d[-1]], "dilations"),
            "pads": made(lambda p: [p[0], p[0], p[-1], p[-1]], "pads"),
            "data_format": fixed("NCHW"),
        },
        holds={
            "x": operand("input", "input_dtype", of_bytes=HIF8),
            "filter": operand("weight", "weight_dtype", of_bytes=HIF8),
        },
    ),
    NpuOp(
        "npu_batch_gather_matmul",
        "AddLora",
        add_lora,
        {"y": "self", "weightA": "weight_a", "weightB": "weight_b"},
        copies=("self",),
    ),
)
IN_PLACE = (InPlaceOp("npu_add_quant_matmul_", "npu_add_quant_matmul", {"self": 0}, ("self",)),)
