"""Send rows to the ranks of their experts, multiply them per expert, and send them back.

Counts are rows per (rank, expert), ordered by the ranks to which rows go, or from which they come. Rows are
sent rank by rank and multiplied expert by expert.
"""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.core.errors import BadGroup
from torchair.ops.npu.common.op_spec import NpuOp, made
from torchair.ops.npu.common.packing import operand, scale_of, weight
from torchair.ops.npu.common.ranks import all_to_all
from torchair.ops.npu.dense.matmul import block_scaled_product, packed_group_size
from torchair.ops.npu.moe.communication import UNDEFINED, refuse, scale_of_rows, stored_as, turned
from torchair.ops.numerics.formats import E2M1, ir_type, ir_type_or


def check_counts(rows, experts, ranks, rows_of, **counts):
    """Raise unless there is one count per (rank, expert), and the counts cover all rows."""
    for name, numbers in counts.items():
        if len(numbers) != experts * ranks:
            raise BadGroup(
                f"{name} must have one count per (rank, expert)",
                got=f"{len(numbers)} numbers",
                near=f"{ranks} ranks · {experts} local experts",
            )
    if sum(rows_of) != rows:
        raise BadGroup(
            "the counts do not match the number of rows", got=f"{rows} rows", near=f"{sum(rows_of)}"
        )


def of_ranks(counts, ranks):
    """Return the rows per rank."""
    experts = len(counts) // ranks
    return [sum(counts[rank * experts : (rank + 1) * experts]) for rank in range(ranks)]


def by_expert(rows, counts, ranks):
    """Reorder rows from rank by rank to expert by expert."""
    experts = len(counts) // ranks
    parts = rows.split(list(counts))
    return torch.cat([parts[rank * experts + e] for e in range(experts) for rank in range(ranks)])


def by_rank(rows, counts, ranks):
    """Reorder rows from expert by expert to rank by rank."""
    experts = len(counts) // ranks
    parts = rows.split([counts[rank * experts + e] for e in range(experts) for rank in range(ranks)])
    return torch.cat([parts[e * ranks + rank] for rank in range(ranks) for e in range(experts)])


def arrived(rows, send_counts, recv_counts, group, ranks):
    """Return the rows of all ranks for the experts of this rank, expert by expert."""
    if rows is None or ranks == 1:
        return rows
    moved = all_to_all(rows, group, ranks, of_ranks(recv_counts, ranks), of_ranks(send_counts, ranks))
    return by_expert(moved, recv_counts, ranks)


def returned(rows, send_counts, recv_counts, group, ranks):
    """Send the rows of this rank's experts back to their ranks, in their original order."""
    if ranks == 1:
        return rows
    parts = of_ranks(recv_counts, ranks), of_ranks(send_counts, ranks)
    return all_to_all(by_rank(rows, send_counts, ranks), group, ranks, *parts)


def experts_product(x, weights, counts, ranks, x_scale=None, weight_scale=None):
    """Return x @ the matrix of each row's expert, in float32; rows are ordered expert by expert."""
    experts = weights.shape[0]
    sizes = [sum(counts[e::experts]) for e in range(experts)]
    scales = [None] * experts if x_scale is None else x_scale.split(sizes)
    made = [
        block_scaled_product(part, weights[e], None, scales[e], of_expert(weight_scale, e), None, 0)
        for e, part in enumerate(x.split(sizes))
    ]
    return torch.cat(made)


def of_expert(scale, expert):
    """Return the scale of one expert's matrix: a common one, or its own."""
    return scale if scale is None or scale.numel() == 1 else scale[expert]


def shared_product(x, weight, x_scale, weight_scale, like, kind):
    """Return the product of the shared expert, or an empty tensor."""
    if x is None or weight is None:
        return like.new_empty(0, dtype=like.dtype if kind == UNDEFINED else dtypes.to_torch(kind))
    return stored_as(block_scaled_product(x, weight, None, x_scale, weight_scale, None, 0), kind, x)


def all_to_allv_grouped_mat_mul(
    gmm_x, gmm_weight, send_counts_tensor, recv_counts_tensor, mm_x, mm_weight, *, group, ep_world_size,
    send_counts, recv_counts, trans_gmm_weight=False, trans_mm_weight=False, permute_out_flag=False,
    comm_mode="ai_cpu",
):  # fmt: skip
    """Return (products of the received rows, product of the shared expert, the received rows)."""
    return exchanged_product(
        gmm_x, gmm_weight, None, None, mm_x, mm_weight, None, None,
        counts_tensors=(send_counts_tensor, recv_counts_tensor), group=group, ranks=ep_world_size,
        send_counts=send_counts, recv_counts=recv_counts, turned_weights=(trans_gmm_weight, trans_mm_weight),
        kinds=(UNDEFINED, UNDEFINED), wants_rows=permute_out_flag,
    )  # fmt: skip


def all_to_allv_quant_grouped_mat_mul(
    gmm_x, gmm_weight, gmm_x_scale, gmm_weight_scale, send_counts_tensor, recv_counts_tensor, mm_x, mm_weight,
    mm_x_scale, mm_weight_scale, *, group, ep_world_size, send_counts, recv_counts, gmm_x_quant_mode,
    gmm_weight_quant_mode, trans_gmm_weight=False, trans_mm_weight=False, permute_out_flag=False,
    mm_x_quant_mode=0, mm_weight_quant_mode=0, group_size=0, y_dtype=28, mm_dtype=28, comm_mode="ai_cpu",
):  # fmt: skip
    """Compute the same product of small floats with one scale, or with powers of two for 32 values."""
    return exchanged_product(
        gmm_x, gmm_weight, gmm_x_scale, gmm_weight_scale, mm_x, mm_weight, mm_x_scale, mm_weight_scale,
        counts_tensors=(send_counts_tensor, recv_counts_tensor), group=group, ranks=ep_world_size,
        send_counts=send_counts, recv_counts=recv_counts, turned_weights=(trans_gmm_weight, trans_mm_weight),
        kinds=(y_dtype, mm_dtype), wants_rows=permute_out_flag,
    )  # fmt: skip


def exchanged_product(
    x, weights, x_scale, weight_scale, mm_x, mm_weight, mm_x_scale, mm_weight_scale, *, counts_tensors, group,
    ranks, send_counts, recv_counts, turned_weights, kinds, wants_rows,
):  # fmt: skip
    """Send rows with their scales, and multiply them."""
    refuse(send_counts_tensor=counts_tensors[0], recv_counts_tensor=counts_tensors[1])
    weights = turned(weights, turned_weights[0])
    check_counts(
        x.shape[0], weights.shape[0], ranks, send_counts, send_counts=send_counts, recv_counts=recv_counts
    )
    way = send_counts, recv_counts, group, ranks
    rows = arrived(x, *way)
    scales = None if x_scale is None else arrived(scale_of_rows(x_scale, x.shape[0]), *way)
    y = experts_product(rows, weights, recv_counts, ranks, scales, weight_scale)
    mm_weight = None if mm_weight is None else turned(mm_weight, turned_weights[1])
    shared = shared_product(mm_x, mm_weight, mm_x_scale, mm_weight_scale, x, kinds[1])
    return stored_as(y, kinds[0], x), shared, rows if wants_rows else x.new_empty(0)


def grouped_mat_mul_all_to_allv(
    gmm_x, gmm_weight, send_counts_tensor, recv_counts_tensor, mm_x, mm_weight, *, group, ep_world_size,
    send_counts, recv_counts, trans_gmm_weight=False, trans_mm_weight=False, comm_mode="ai_cpu",
):  # fmt: skip
    """Return (products of this rank's rows, on the ranks of the rows; product of the shared expert)."""
    return returned_product(
        gmm_x, gmm_weight, None, None, mm_x, mm_weight, None, None,
        counts_tensors=(send_counts_tensor, recv_counts_tensor), group=group, ranks=ep_world_size,
        send_counts=send_counts, recv_counts=recv_counts, turned_weights=(trans_gmm_weight, trans_mm_weight),
        kinds=(UNDEFINED, UNDEFINED),
    )  # fmt: skip


def quant_grouped_mat_mul_all_to_allv(
    gmm_x, gmm_weight, gmm_x_scale, gmm_weight_scale, send_counts_tensor, recv_counts_tensor, mm_x, mm_weight,
    mm_x_scale, mm_weight_scale, comm_quant_scale, *, group, ep_world_size, send_counts, recv_counts,
    gmm_x_quant_mode, gmm_weight_quant_mode, trans_gmm_weight=False, trans_mm_weight=False, mm_x_quant_mode=0,
    mm_weight_quant_mode=0, comm_quant_mode=0, group_size=0, y_dtype=28, mm_dtype=28, comm_quant_dtype=0,
    comm_mode="ai_cpu",
):  # fmt: skip
    """Compute the same product of small floats with one scale, or with powers of two for 32 values."""
    refuse(comm_quant_scale=comm_quant_scale, comm_quant_mode=comm_quant_mode or None)
    return returned_product(
        gmm_x, gmm_weight, gmm_x_scale, gmm_weight_scale, mm_x, mm_weight, mm_x_scale, mm_weight_scale,
        counts_tensors=(send_counts_tensor, recv_counts_tensor), group=group, ranks=ep_world_size,
        send_counts=send_counts, recv_counts=recv_counts, turned_weights=(trans_gmm_weight, trans_mm_weight),
        kinds=(y_dtype, mm_dtype),
    )  # fmt: skip


def returned_product(
    x, weights, x_scale, weight_scale, mm_x, mm_weight, mm_x_scale, mm_weight_scale, *, counts_tensors, group,
    ranks, send_counts, recv_counts, turned_weights, kinds,
):  # fmt: skip
    """Multiply rows, and send the products in the type of the result."""
    refuse(send_counts_tensor=counts_tensors[0], recv_counts_tensor=counts_tensors[1])
    weights = turned(weights, turned_weights[0])
    check_counts(
        x.shape[0], weights.shape[0], ranks, send_counts, send_counts=send_counts, recv_counts=recv_counts
    )
    scales = None if x_scale is None else scale_of_rows(x_scale, x.shape[0])
    y = stored_as(experts_product(x, weights, send_counts, ranks, scales, weight_scale), kinds[0], x)
    mm_weight = None if mm_weight is None else turned(mm_weight, turned_weights[1])
    shared = shared_product(mm_x, mm_weight, mm_x_scale, mm_weight_scale, x, kinds[1])
    return returned(y, send_counts, recv_counts, group, ranks), shared


_QUANTISED = {
    "group": "hcom",
    "group_size": made(packed_group_size, "group_size"),
    "y_dtype": made(ir_type, "gmm_y_dtype"),
    "mm_dtype": made(ir_type_or(UNDEFINED), "mm_y_dtype"),
    **{
        name: made(lambda mode: mode or 0, name)
        for name in ("gmm_x_quant_mode", "gmm_weight_quant_mode", "mm_x_quant_mode", "mm_weight_quant_mode")
    },
}
_HELD = {
    "gmm_x": operand("gmm_x", "gmm_x_dtype", of_bytes=E2M1),
    "mm_x": operand("mm_x", "mm_x_dtype", of_bytes=E2M1),
    "gmm_weight": weight(
        "gmm_weight", "gmm_x", ("gmm_weight_dtype", "gmm_x_dtype"), of_bytes=E2M1, flag="trans_gmm_weight"
    ),
    "mm_weight": weight(
        "mm_weight", "mm_x", ("mm_weight_dtype", "mm_x_dtype"), of_bytes=E2M1, flag="trans_mm_weight"
    ),
    **{name: scale_of(name) for name in ("gmm_x_scale", "gmm_weight_scale", "mm_x_scale", "mm_weight_scale")},
}
_SCALE_CODES = (
    "gmm_x_scale_dtype", "gmm_weight_scale_dtype", "mm_x_scale_dtype", "mm_weight_scale_dtype",
)  # fmt: skip
ROWS = (
    NpuOp("npu_alltoallv_gmm", "AlltoAllvGroupedMatMul", all_to_allv_grouped_mat_mul, {"group": "hcom"}),
    NpuOp(
        "npu_alltoallv_quant_gmm", "AlltoAllvQuantGroupedMatMul", all_to_allv_quant_grouped_mat_mul,
        _QUANTISED, holds=_HELD, makes={2: "gmm_x"}, ignored=_SCALE_CODES,
    ),
    NpuOp("npu_gmm_alltoallv", "GroupedMatMulAlltoAllv", grouped_mat_mul_all_to_allv, {"group": "hcom"}),
    NpuOp(
        "npu_quant_gmm_alltoallv", "QuantGroupedMatMulAlltoAllv", quant_grouped_mat_mul_all_to_allv,
        {
            **_QUANTISED,
            "comm_quant_mode": made(lambda mode: mode or 0, "comm_quant_mode"),
            "comm_quant_dtype": made(ir_type_or(0), "comm_quant_dtype"),
        },
        holds=_HELD, ignored=_SCALE_CODES,
    ),
)  # fmt: skip
