"""Compute matrix products with a collective before or after them, sums of quantized tensors, and a barrier.

Sums over ranks are float32 until the result is stored. The rows of every rank keep their quantization scales:
scales are sent with the rows.
"""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.core.errors import UnsupportedOp
from torchair.ops.npu.common.op_spec import NpuOp, dtype_of, made
from torchair.ops.npu.common.packing import operand, scale_of, weight
from torchair.ops.npu.common.ranks import (
    all_gather,
    all_reduce,
    all_to_all,
    check_parts,
    check_sum,
    reduce_scatter,
    size_of,
)
from torchair.ops.npu.dense.matmul import (
    block_scaled_product,
    decoded,
    packed_group_size,
    scaled_blocks,
    weight_numbers,
)
from torchair.ops.numerics.formats import (
    BF16,
    E2M1,
    FP16,
    FP32,
    INT8,
    dynamic,
    ir_type,
    ir_type_or,
    static,
    wide,
)

UNDEFINED = dtypes.UNDEFINED
# Quantization of x1 in an exchange: before the op, or in the op, row by row.
PER_TOKEN_HERE = 7


def refuse(**parts):
    """Raise for arguments without a definition."""
    given = [name for name, part in parts.items() if part is not None and part is not False]
    if given:
        raise UnsupportedOp(
            f"an op that computes and communicates, with {', '.join(given)}", next="omit these arguments"
        )


def turned(x, is_turned):
    """Swap the last two dims if `is_turned`."""
    return x.mT if is_turned else x


def stored_as(y, kind, x):
    """Return a result in its type; the default is that of x."""
    return y.to(x.dtype if kind == UNDEFINED else dtypes.to_torch(kind))


def scale_of_rows(scale, rows):
    """Return a scale that can be sent with rows: a single one is repeated."""
    return scale.reshape(1).expand(rows) if scale.numel() == 1 else scale


def amax(y, is_wanted):
    """Return the largest magnitude [1], or an empty tensor."""
    return y.abs().amax().float().reshape(1) if is_wanted else y.new_empty(0, dtype=torch.float32)


# Products of gathered tensors


def gathered_product(x1, x2, bias, x1_scale, x2_scale, group, ranks, gather_index):
    """Return (product in float32, the gathered tensor)."""
    if gather_index == 1:
        refuse(x1_scale=x1_scale, x2_scale=x2_scale)
        gathered = all_gather(x2, group, ranks)
        return block_scaled_product(x1, gathered, bias, None, None, None, 0), gathered
    gathered = all_gather(x1, group, ranks)
    if x1_scale is not None and ranks > 1:
        x1_scale = all_gather(scale_of_rows(x1_scale, x1.shape[0]), group, ranks)
    return block_scaled_product(gathered, x2, bias, x1_scale, x2_scale, None, 0), gathered


def all_gather_matmul(
    x1, x2, bias, *, group, is_trans_a=False, is_trans_b=False, gather_index=0, comm_turn=0, rank_size=0,
    is_gather_out=True,
):  # fmt: skip
    """Return (x1 of all ranks @ x2 + bias, x1 of all ranks); `gather_index` 1 gathers x2 instead."""
    a, b = turned(x1, is_trans_a), turned(x2, is_trans_b)
    ranks = rank_size or size_of(group)
    y, gathered = gathered_product(a, b, bias, None, None, group, ranks, gather_index)
    return y.to(x1.dtype), gathered if is_gather_out else x1.new_empty(0)


def all_gather_matmul_quantized(
    x1, x2, bias, x1_scale, x2_scale, quant_scale, *, group, is_trans_a=False, is_trans_b=False,
    gather_index=0, comm_turn=0, rank_size=0, block_size=0, group_size=0, is_gather_out=True,
    is_amax_out=False, y_dtype=0, comm_mode="",
):  # fmt: skip
    """Compute `all_gather_matmul` of quantized operands; returns the largest magnitude, too."""
    refuse(quant_scale=quant_scale)
    a, b = turned(x1, is_trans_a), turned(x2, is_trans_b)
    ranks = rank_size or size_of(group)
    y, gathered = gathered_product(a, b, bias, x1_scale, x2_scale, group, ranks, gather_index)
    gathered = gathered if is_gather_out else x1.new_empty(0)
    return stored_as(y, y_dtype, x1), gathered, amax(y, is_amax_out)


# Products that are summed


def sum_of_bytes(y, first, second, group, ranks):
    """Return the sum over ranks of rows sent as int8: parts with the first scale, sums with the second."""
    parts = wide(static(y, first, None, INT8, divide=True)) * wide(first)
    total = all_reduce(parts, group, ranks)
    return wide(static(total, second, None, INT8, divide=True)) * wide(second)


def matmul_all_reduce(
    x1, x2, bias, x3, antiquant_scale, antiquant_offset, dequant_scale, pertoken_scale, comm_quant_scale_1,
    comm_quant_scale_2, *, group, reduce_op="sum", is_trans_a=False, is_trans_b=False, comm_turn=0,
    antiquant_group_size=0, group_size=0, y_dtype=28, comm_quant_mode=0, comm_mode="ai_cpu",
):  # fmt: skip
    """Return the sum over ranks of each rank's x1 @ x2 + bias + x3."""
    check_sum(reduce_op)
    refuse(comm_quant_mode=comm_quant_mode or None)
    a, b = turned(x1, is_trans_a), turned(x2, is_trans_b)
    if antiquant_scale is not None:
        b = weight_numbers(b, antiquant_scale, antiquant_offset, a.shape[-1], antiquant_group_size)
    y = block_scaled_product(a, b, bias, pertoken_scale, dequant_scale, None, group_size)
    y = y if x3 is None else y + wide(x3)
    ranks = size_of(group)
    if comm_quant_scale_1 is None or comm_quant_scale_2 is None:
        return stored_as(all_reduce(y, group, ranks), y_dtype, x1)
    return stored_as(sum_of_bytes(y, comm_quant_scale_1, comm_quant_scale_2, group, ranks), y_dtype, x1)


def matmul_reduce_scatter(
    x1, x2, bias, *, group, reduce_op="sum", is_trans_a=False, is_trans_b=False, comm_turn=0, rank_size=0
):
    """Return this rank's rows of the sum over ranks of x1 @ x2 + bias."""
    check_sum(reduce_op)
    a, b = turned(x1, is_trans_a), turned(x2, is_trans_b)
    y = block_scaled_product(a, b, bias, None, None, None, 0)
    return reduce_scatter(y, group, rank_size or size_of(group)).to(x1.dtype)


def matmul_reduce_scatter_quantized(
    x1, x2, bias, x1_scale, x2_scale, quant_scale, *, group, reduce_op="sum", is_trans_a=False,
    is_trans_b=False, comm_turn=0, rank_size=0, block_size=0, group_size=0, is_amax_out=False, y_dtype=28,
    comm_mode="ai_cpu",
):  # fmt: skip
    """Compute `matmul_reduce_scatter` of quantized operands; returns the largest magnitude, too."""
    check_sum(reduce_op)
    refuse(quant_scale=quant_scale)
    a, b = turned(x1, is_trans_a), turned(x2, is_trans_b)
    y = block_scaled_product(a, b, bias, x1_scale, x2_scale, None, group_size)
    part = reduce_scatter(y, group, rank_size or size_of(group))
    return stored_as(part, y_dtype, x1), amax(part, is_amax_out)


# Exchange of rows for columns


def rows_for_columns(x, group, ranks):
    """Convert [m, k, ...] of every rank to this rank's rows of all columns: [m / R, k · R, ...]."""
    check_parts(x, 0, ranks)
    return torch.cat(all_to_all(x, group, ranks).chunk(ranks, 0), 1) if ranks > 1 else x


def columns_for_rows(x, group, ranks):
    """Convert [m, n] of every rank to this rank's columns of all rows: [m · R, n / R]."""
    check_parts(x, 1, ranks)
    return all_to_all(torch.cat(x.chunk(ranks, 1), 0), group, ranks) if ranks > 1 else x


def check_axes(axes, expected):
    """Raise if the exchange is not between the last two dims."""
    if list(axes) != expected:
        raise UnsupportedOp("an exchange along other dims", got=f"all2all_axes {axes}", near=str(expected))


def all_to_all_matmul(
    x1, x2, bias, x1_scale, x2_scale, comm_scale, x1_offset, x2_offset, *, group, world_size,
    all2all_axes=(-2, -1), y_dtype=28, x1_quant_mode=0, x2_quant_mode=0, comm_quant_mode=0,
    x1_quant_dtype=28, comm_quant_dtype=28, transpose_x1=False, transpose_x2=False, group_size=0,
    alltoall_out_flag=True, comm_mode="ai_cpu",
):  # fmt: skip
    """Return (A @ x2 + bias, A), A being this rank's rows of all columns; A may be quantized row by row."""
    check_axes(all2all_axes, [-2, -1])
    refuse_quantized_exchange(comm_scale, comm_quant_mode, comm_quant_dtype, x1_offset, x2_offset)
    x = rows_for_columns(turned(x1, transpose_x1), group, world_size)
    rows, scale = x, x1_scale
    if x1_quant_mode == PER_TOKEN_HERE:
        refuse(x1_scale=x1_scale)
        rows, scale = quantized_here(x, x1_quant_dtype)
    elif scale is not None:
        scale = exchanged_scale(scale, x1, group, world_size)
    y = block_scaled_product(rows, turned(x2, transpose_x2), bias, scale, x2_scale, None, group_size)
    return stored_as(y, y_dtype, x1), x if alltoall_out_flag else x1.new_empty(0)


def quantized_here(x, kind):
    """Return (small floats, scale per row)."""
    if kind == UNDEFINED:
        raise UnsupportedOp(
            "quantizing x1 after its exchange without x1_quant_dtype", next="pass x1_quant_dtype"
        )
    return dynamic(x, kind)


def exchanged_scale(scale, x1, group, ranks):
    """Send the scales of blocks along columns [m, blocks, 2] with their columns."""
    if ranks > 1 and (scale.ndim != 3 or x1.shape[1] != scale.shape[1] * 64):
        raise UnsupportedOp(
            "an exchange of rows for columns with quantized values and these scales",
            got=f"x1 {list(x1.shape)}   x1_scale {list(scale.shape)}",
            near="one power of two for 32 values, x1 [m, k] with k a multiple of 64",
        )
    return rows_for_columns(scale, group, ranks)


def refuse_quantized_exchange(comm_scale, comm_quant_mode, comm_quant_dtype, x1_offset, x2_offset):
    """Raise if the exchanged values would be quantized for the exchange."""
    kind = None if comm_quant_dtype == UNDEFINED else comm_quant_dtype
    refuse(
        common_scale=comm_scale, common_quant_mode=comm_quant_mode or None, comm_quant_dtype=kind,
        x1_offset=x1_offset, x2_offset=x2_offset,
    )  # fmt: skip


def matmul_all_to_all(
    x1, x2, bias, x1_scale, x2_scale, comm_scale, x1_offset, x2_offset, *, group, world_size,
    all2all_axes=(-1, -2), y_dtype=28, x1_quant_mode=0, x2_quant_mode=0, comm_quant_mode=0,
    comm_quant_dtype=28, transpose_x1=False, transpose_x2=False, group_size=0, comm_mode="ai_cpu",
):  # fmt: skip
    """Return this rank's columns of x1 @ x2 + bias, of all ranks."""
    check_axes(all2all_axes, [-1, -2])
    refuse_quantized_exchange(comm_scale, comm_quant_mode, comm_quant_dtype, x1_offset, x2_offset)
    if x1_quant_mode == PER_TOKEN_HERE:
        raise UnsupportedOp(
            "x1_quant_mode 7 of a product before the exchange", next="quantize x1 before the op"
        )
    a, b = turned(x1, transpose_x1), turned(x2, transpose_x2)
    y = block_scaled_product(a, b, bias, x1_scale, x2_scale, None, group_size)
    return columns_for_rows(stored_as(y, y_dtype, x1), group, world_size)


# Quantized sums


def dequantized(x, scales):
    """Dequantize x: one scale for all, for equal parts of every dim, or powers of two for 32 values."""
    is_even = scales.ndim == x.ndim and all(
        size % parts == 0 for size, parts in zip(x.shape, scales.shape, strict=True)
    )
    if scales.numel() > 1 and not (is_even or scales.ndim == x.ndim + 1):
        raise UnsupportedOp(
            "a sum of quantized values with these scales",
            got=f"x {list(x.shape)}   scales {list(scales.shape)}",
            near="one scale, [.., n / group], or [.., n / 64, 2] of powers of two",
        )
    values = decoded(x)
    return wide(values) * wide(scales) if scales.numel() == 1 else scaled_blocks(wide(values), scales, -1)


def quant_all_reduce(x, scales, *, group, reduce_op="sum", output_dtype=27, world_size):
    """Return the sum over ranks of quantized values."""
    check_sum(reduce_op)
    return all_reduce(dequantized(x, scales), group, world_size).to(dtypes.to_torch(output_dtype))


def quant_reduce_scatter(x, scales, *, group, reduce_op="sum", output_dtype=27, world_size):
    """Return this rank's rows of `quant_all_reduce`; in the IR, the number of ranks is text."""
    check_sum(reduce_op)
    y = reduce_scatter(dequantized(x, scales), group, int(world_size))
    return y.to(dtypes.to_torch(output_dtype))


def distribute_barrier(x_ref, time_out, elastic_info, *, group, world_size):
    """Return x after all ranks have called this: the result depends on data from all ranks."""
    refuse(elastic_info=elastic_info)
    if world_size == 1:
        return x_ref
    here = x_ref.flatten()[:1].to(torch.bool).sum(dtype=torch.int32).reshape(1)
    return torch.where(all_reduce(here, group, world_size) >= 0, x_ref, torch.zeros_like(x_ref))


def _kind_like(code, x):
    """Return the requested type, otherwise that of x, or float32 for small types."""
    if code is not None:
        return ir_type(code)
    kind = dtype_of(x)
    return dtypes.to_ge(kind) if kind.is_floating_point and kind.itemsize > 1 else FP32


def _kind_of_sum(code, x1, scale):
    """Return the requested type; int8 gives 16-bit results, bfloat16 if the scales are bfloat16."""
    if code is None and dtype_of(x1) == torch.int8:
        return BF16 if scale is not None and dtype_of(scale) == torch.bfloat16 else FP16
    return _kind_like(code, x1)


def _is_plain(given):
    """Return whether the older IR op supports the arguments."""
    return all(given[name] is None for name in ("x1_scale", "x2_scale", "output_dtype", "comm_mode"))


_GROUP = made(packed_group_size, "group_sizes")
_ANY = made(ir_type_or(UNDEFINED), "y_dtype")
_MODES = {name: made(lambda mode: mode or 0, name) for name in ("x1_quant_mode", "x2_quant_mode")}
_GATHERED = {"x1": "self", "group": "hcom", "rank_size": "world_size"}
_GATHERED_OUT = {**_GATHERED, "is_gather_out": "gather_output"}
_SCATTERED_OUT = {"is_amax_out": "amax_output", "group_size": _GROUP}
_EXCHANGED = {"group": "hcom", "comm_scale": "common_scale", "group_size": _GROUP}
_QUANTISED_EXCHANGE = {
    **_EXCHANGED,
    **_MODES,
    "comm_quant_mode": made(lambda mode: mode or 0, "common_quant_mode"),
    "comm_quant_dtype": made(ir_type_or(UNDEFINED), "comm_quant_dtype"),
    "y_dtype": made(ir_type_or(FP32), "y_dtype"),
}
_UNUSED_CODES = ("output_scale_dtype", "comm_scale_dtype")
_PLAIN_ONLY = ("x1_scale", "x2_scale", "output_dtype", "comm_mode")


def _held(x1, flag):
    """Return the types of packed operands and scales."""
    return {
        "x1": operand(x1, "x1_dtype", of_bytes=E2M1),
        "x2": weight("x2", x1, ("x2_dtype", "x1_dtype"), of_bytes=E2M1, flag=flag),
        "x1_scale": scale_of("x1_scale"),
        "x2_scale": scale_of("x2_scale"),
    }


_SCALE_CODES = ("x1_scale_dtype", "x2_scale_dtype")
_HELD_PLAIN = {
    "x1": operand("self", of_bytes=E2M1),
    "x2": weight("x2", "self", of_bytes=E2M1, flag="is_trans_b"),
    "x1_scale": scale_of("x1_scale"),
    "x2_scale": scale_of("x2_scale"),
}
_HELD_GATHERED, _HELD_EXCHANGED = _held("self", "is_trans_b"), _held("x1", "transpose_x2")
ROWS = (
    NpuOp(
        "npu_all_gather_base_mm", "AllGatherMatmul", all_gather_matmul, _GATHERED_OUT, when=_is_plain,
        ignored=_PLAIN_ONLY,
    ),
    NpuOp(
        "npu_all_gather_base_mm", "AllGatherMatmulV2", all_gather_matmul_quantized,
        {**_GATHERED_OUT, "y_dtype": made(_kind_like, "output_dtype", "self")}, outputs=(0, 1),
        holds=_HELD_PLAIN, makes={1: "x1"},
    ),
    NpuOp(
        "npu_all_gather_quant_mm", "AllGatherMatmulV2", all_gather_matmul_quantized,
        {**_GATHERED_OUT, **_SCATTERED_OUT, "y_dtype": made(_kind_like, "y_dtype", "self")},
        holds=_HELD_GATHERED, makes={1: "x1"}, ignored=_SCALE_CODES,
    ),
    NpuOp(
        "npu_mm_all_reduce_base", "MatmulAllReduce", matmul_all_reduce,
        {
            "group": "hcom", "group_size": _GROUP,
            "y_dtype": made(_kind_of_sum, "y_dtype", "x1", "dequant_scale"),
        },
        holds={
            "x1": operand("x1", "x1_dtype", of_bytes=E2M1),
            "x2": weight("x2", "x1", ("x2_dtype", "x1_dtype"), of_bytes=E2M1, flag="is_trans_b"),
            "dequant_scale": scale_of("dequant_scale"), "pertoken_scale": scale_of("pertoken_scale"),
        },
        ignored=("dequant_scale_dtype", "pertoken_scale_dtype"),
    ),
    NpuOp(
        "npu_mm_reduce_scatter_base", "MatmulReduceScatter", matmul_reduce_scatter, _GATHERED,
        when=_is_plain, ignored=_PLAIN_ONLY,
    ),
    NpuOp(
        "npu_mm_reduce_scatter_base", "MatmulReduceScatterV2", matmul_reduce_scatter_quantized,
        {**_GATHERED, "y_dtype": made(_kind_like, "output_dtype", "self")}, outputs=(0,),
        holds=_HELD_PLAIN,
    ),
    NpuOp(
        "npu_quant_mm_reduce_scatter", "MatmulReduceScatterV2", matmul_reduce_scatter_quantized,
        {**_GATHERED, **_SCATTERED_OUT, "y_dtype": made(_kind_like, "y_dtype", "self")},
        holds=_HELD_GATHERED, ignored=_SCALE_CODES,
    ),
    NpuOp(
        "npu_all_to_all_matmul", "AlltoAllMatmul", all_to_all_matmul,
        {"group": "hcom", "alltoall_out_flag": "all2all_out_flag"}, makes={1: "x1"},
    ),
    NpuOp(
        "npu_all_to_all_quant_matmul", "AlltoAllMatmul", all_to_all_matmul,
        {
            **_QUANTISED_EXCHANGE, "alltoall_out_flag": "all2all_out_flag",
            "x1_quant_dtype": made(ir_type_or(UNDEFINED), "x1_quant_dtype"),
        },
        holds=_HELD_EXCHANGED, makes={1: "x1"}, ignored=(*_SCALE_CODES, *_UNUSED_CODES),
    ),
    NpuOp("npu_matmul_all_to_all", "MatmulAlltoAll", matmul_all_to_all, {"group": "hcom"}),
    NpuOp(
        "npu_quant_matmul_all_to_all", "MatmulAlltoAll", matmul_all_to_all, _QUANTISED_EXCHANGE,
        holds=_HELD_EXCHANGED, ignored=(*_SCALE_CODES, *_UNUSED_CODES),
    ),
    *(
        NpuOp(
            op, ir, fn,
            {
                "group": "hcom", "output_dtype": made(ir_type_or(BF16), "output_dtype"),
                "world_size": made(text, "world_size"),
            },
            holds={"x": operand("x", "x_dtype", of_bytes=E2M1), "scales": scale_of("scales")},
            ignored=("scales_dtype",),
        )
        for op, ir, fn, text in (
            ("npu_quant_all_reduce", "QuantAllReduce", quant_all_reduce, int),
            ("npu_quant_reduce_scatter", "QuantReduceScatter", quant_reduce_scatter, str),
        )
    ),
    NpuOp("_npu_distribute_barrier", "DistributeBarrier", distribute_barrier, copies=("x_ref",)),
)  # fmt: skip
ACTING = ("_npu_distribute_barrier",)
