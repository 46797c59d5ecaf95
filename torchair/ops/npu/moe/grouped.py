"""Compute one matrix product per group of rows, its fusions, and the feed-forward of experts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from torchair.core import dtypes
from torchair.ops.npu.common.groups import ENDS, PAIRS, group_ends, group_ids
from torchair.ops.npu.common.op_spec import InPlaceOp, NpuOp, dtype_of, made
from torchair.ops.npu.common.packing import operand, scale_of, weight
from torchair.ops.npu.common.sequences import numbers
from torchair.ops.npu.dense.matmul import (
    decoded,
    is_microscaled,
    packed_group_size,
    quantized_rows,
    rows_scale,
    scaled_blocks,
    weight_numbers,
)
from torchair.ops.npu.dense.quant import unpacked_scale
from torchair.ops.numerics.formats import (
    E2M1,
    FP16,
    FP32,
    INT4,
    INT8,
    dynamic,
    ir_type,
    ir_type_or,
    mx,
    static,
    store,
    wide,
)
from torchair.ops.numerics.grouped import grouped_mm

ACTIVATIONS = {
    0: lambda x: x,
    1: torch.relu,
    2: lambda x: F.gelu(x, approximate="tanh"),
    3: F.gelu,
    4: lambda x: x * torch.sigmoid(1.702 * x),
    5: F.silu,
}
# Numbers of the result dtypes in the IR; -1 is that of x.
RESULT_TYPES = {0: torch.float16, 1: torch.bfloat16, 2: torch.int32, 3: torch.float32}
_NUMBERS = {FP16: 0, dtypes.BY_NAME["BF16"].runtime: 1, dtypes.BY_NAME["INT32"].runtime: 2, FP32: 3}
NO_SPLIT, SPLIT_ROWS, SPLIT_INNER = -1, 0, 2


def grouped_product(x, weight, ends):
    """Multiply the rows up to each end with the matrix [E, K, N] of the group; rows after the last group are
    0.

    Integers are multiplied exactly, in double.
    """
    if not x.is_floating_point():
        return grouped_mm(x.double(), weight.double(), ends)
    if x.dtype == weight.dtype == torch.bfloat16 and _is_aligned(x, weight):
        return torch.ops.aten._grouped_mm(x, weight, offs=ends.to(torch.int32))
    return grouped_mm(x, weight.to(x.dtype), ends)


def _is_aligned(x, weight):
    """Return whether rows have a multiple of 16 bytes, as torch's op requires; False for symbols."""
    return all(type(size) is int and size % 8 == 0 for size in (x.shape[1], weight.shape[2]))


def split_inner(x, weight, ends):
    """Return the product over each group's part of the inner dim: [groups, M, N]."""
    groups = torch.bucketize(torch.arange(x.shape[1], device=x.device), ends, right=True)
    member = groups == torch.arange(ends.shape[0], device=x.device)[:, None]
    return torch.matmul(x * member[:, None, :].to(x.dtype), weight)


def stacked(parts):
    """Return a list of matrices (or one stack of them) as [E, …]."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts))


def per_group(parts, dims=2):
    """Return values [E, …] of a list of vectors, of one stack, or of one vector for all."""
    if not parts:
        return None
    found = stacked(parts)
    return found.unsqueeze(0) if found.ndim < dims else found


def of_rows(values, ids):
    """Return the values of each row [M, N]."""
    return values[ids] if values.shape[0] > 1 else values[0]


def as_tensor(group_list, like):
    """Return a group list as a tensor; it may be Python numbers."""
    if not isinstance(group_list, list | tuple):
        return group_list
    found = numbers(group_list, like.device)
    return torch.empty(0, dtype=torch.int64, device=like.device) if found is None else found


def expanded_weights(weights, scales, offsets, inner):
    """Return the weights, dequantized if they have scales."""
    values = stacked(weights)
    if not scales:
        return decoded(values)
    scale, offset = per_group(scales), per_group(offsets)
    scale, offset = (None if part is None else _along_inner(part, inner) for part in (scale, offset))
    return weight_numbers(values, scale, offset, inner)


def _along_inner(part, inner):
    """Repeat [E, N] for every row of the inner dim, and [E, groups, N] for the rows of each group."""
    return part.unsqueeze(1) if part.ndim == 2 else part.repeat_interleave(inner // part.shape[1], 1)


def split_rows_product(x, weights, scale, offset, group_list, per_token_scale, kind):
    """Return (product with its scales applied, ids of rows), in the dtype of the arithmetic."""
    groups = as_tensor(group_list, x)
    left = decoded(x)
    right = expanded_weights(weights, [], [], left.shape[1])
    ids, _ = group_ids(groups, x.shape[0], kind)
    if kind == PAIRS:
        right = right[groups[:, 0].to(torch.int64)]
    scale = per_group(scale)
    if scale is not None and is_microscaled(scale, right):
        left, right = scaled_blocks(left, per_token_scale, -1), scaled_blocks(right, scale, -2)
        return grouped_product(left, right, group_ends(groups, kind)), ids
    if left.is_floating_point():
        left, right = wide(left), wide(right)
    y = grouped_product(left, right, group_ends(groups, kind))
    y = y if scale is None else y * of_rows(unpacked_scale(scale), ids)
    y = y if not offset else y + of_rows(per_group(offset), ids)
    return y if per_token_scale is None else y * rows_scale(per_token_scale), ids


def grouped_matmul(
    x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, group_list, per_token_scale, *,
    split_item=0, dtype=0, transpose_weight=False, transpose_x=False, group_type=-1, group_list_type=0,
    act_type=0, tuning_config=(0,),
):  # fmt: skip
    """Return y_g = x_g @ w_g + b_g for lists of pairs (group_type -1), or for one x that `group_list` splits
    by rows (0) or along the inner dim (2); rows after the last group are 0.
    """
    left = [part.mT for part in x] if transpose_x else list(x)
    right = [part.mT for part in weight] if transpose_weight else list(weight)
    plain = not (scale or offset or antiquant_scale or per_token_scale is not None)
    if group_type == NO_SPLIT:
        made = _pairs(left, right, bias, scale, antiquant_scale, antiquant_offset, per_token_scale)
    elif group_type == SPLIT_INNER:
        ends = group_ends(as_tensor(group_list, left[0]), group_list_type)
        made = [split_inner(left[0], right[0], ends)]
    elif plain and group_list_type != PAIRS and not bias:
        groups = as_tensor(group_list, left[0])
        made = [grouped_product(left[0], stacked(right), group_ends(groups, group_list_type))]
    else:
        made = [
            _rows(left[0], right, bias, scale, offset, antiquant_scale, antiquant_offset, group_list,
                  per_token_scale, group_list_type)
        ]  # fmt: skip
    return [_stored(ACTIVATIONS[act_type](y), x[0].dtype, dtype) for y in made]


def _stored(y, like, number):
    if number == -1 and like == torch.int8:
        return store(y, INT8)
    return y.to(like if number == -1 else RESULT_TYPES[number])


def _rows(
    x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, group_list, per_token_scale, kind
):
    if antiquant_scale:
        weight = [expanded_weights(weight, antiquant_scale, antiquant_offset, x.shape[1])]
    bias = per_group(bias)
    is_int = bias is not None and not bias.is_floating_point()
    if bias is not None and is_int:
        # An integer bias is added before the scales, as one more row of the inner dim.
        left = decoded(x)
        values = expanded_weights(weight, [], [], left.shape[1])
        x = torch.cat((left.double(), left.new_ones(left.shape[0], 1).double()), 1)
        weight = [torch.cat((values.double(), bias.double().unsqueeze(1)), 1)]
    y, ids = split_rows_product(x, weight, scale, offset, group_list, per_token_scale, kind)
    return y if bias is None or is_int else y + of_rows(wide(bias), ids)


def _pairs(left, right, bias, scale, antiquant_scale, antiquant_offset, per_token_scale):
    """Return one product for each x and weight; with several x, the scales are lists, too."""
    made = []
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        if antiquant_scale:
            offset = antiquant_offset[index] if antiquant_offset else None
            b = weight_numbers(b, antiquant_scale[index], offset, a.shape[-1])
        values = decoded(b)
        whole = not a.is_floating_point()
        y = torch.matmul(a.double(), values.double()) if whole else torch.matmul(wide(a), wide(values))
        y = y + bias[index] if bias and whole else y
        y = y * unpacked_scale(scale[index]) if scale else y
        y = y if per_token_scale is None else y * rows_scale(per_token_scale)
        made.append(y + bias[index] if bias and not whole else y)
    return made


def grouped_matmul_finalize_routing(
    x, w, scale, bias, pertoken_scale, group_list, shared_input, logit, row_index, offset, *, dtype=0,
    shared_input_weight=1.0, shared_input_offset=0, transpose_x=False, transpose_w=False, output_bs=0,
    group_list_type=1, tuning_config=(), types,
):  # fmt: skip
    """Sum the rows of a grouped product, times their logits, into their original rows, plus a shared part.
    With int4 weights, `offset` and bias only compensate how the device computes; they have no effect here.
    """
    weight = w.mT if transpose_w else w
    mends = types.get("w") == INT4
    scales = [] if scale is None else [scale.reshape(weight.shape[0], -1)]
    biases = [] if bias is None or mends else [bias]
    y = _rows(x, [weight], biases, scales, [], [], [], group_list, pertoken_scale, group_list_type)
    y = y.float() if logit is None else y.float() * logit.reshape(-1, 1)
    _, covered = group_ids(group_list, x.shape[0], group_list_type)
    y = torch.where(covered.unsqueeze(-1), y, 0.0)
    rows = output_bs or x.shape[0]
    out = y.new_zeros(rows, y.shape[1])
    if shared_input is not None:
        shared = shared_input.float() * shared_input_weight
        below = rows - shared_input_offset - shared.shape[0]
        out = out + F.pad(shared, (0, 0, shared_input_offset, below))
    targets = torch.arange(x.shape[0], device=x.device) if row_index is None else row_index.to(torch.int64)
    return out.index_add(0, targets, y).to(_FINALIZED[dtype])


_FINALIZED = {0: torch.float32, 1: torch.float16, 2: torch.bfloat16}
_FINALIZED_NUMBERS = {None: 0, torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def grouped_matmul_swiglu_quant(
    x, x_scale, group_list, weight, weight_scale, weight_assist_matrix, bias, smooth_scale, *, dequant_mode=0,
    dequant_dtype=0, quant_mode=0, quant_dtype=1, transpose_weight=False, group_list_type=0,
    tuning_config=(0,),
):  # fmt: skip
    """Compute a grouped product and SwiGLU on its halves, quantized per row or microscaled: (y, scale)."""
    weights = [part.mT for part in weight] if transpose_weight else list(weight)
    biases = [] if bias is None else [bias]
    y = _rows(x, weights, biases, list(weight_scale), [], [], [], group_list, x_scale, group_list_type)
    a, b = y.float().chunk(2, -1)
    y = F.silu(a) * b
    if smooth_scale is not None:
        ids, _ = group_ids(group_list, x.shape[0], group_list_type)
        y = y * (of_rows(smooth_scale, ids) if smooth_scale.ndim == 2 else smooth_scale)
    kind = ir_type(quant_dtype)
    return mx(y, kind) if quant_mode == 2 or dequant_mode == 2 else dynamic(y, kind)


def quant_grouped_matmul_dequant(
    x, quantized_weight, weight_scale, group_list, bias, x_scale, x_offset, smooth_scale, *,
    x_quant_mode="pertoken", transpose_weight=True,
):  # fmt: skip
    """Quantize x, multiply with the int8 weight of its group (cumulative ends), and return the dtype of x."""
    smooth = smooth_scale
    if smooth is not None and smooth.ndim == 2:
        smooth = smooth[group_ids(group_list, x.shape[0])[0]]
    rows, scale = quantized_rows(x, x_scale, x_offset, smooth, x_quant_mode)
    weight = quantized_weight.mT if transpose_weight else quantized_weight
    if x_offset is not None:
        rows = rows.double() - wide(x_offset)
    biases = [] if bias is None else [bias]
    y = _rows(rows, [weight], biases, [weight_scale], [], [], [], group_list, None, ENDS)
    return (y * scale).to(x.dtype)


def quant_grouped_matmul_inplace_add(
    x1, x2, scale2, group_list, y, scale1, *, group_list_type=0, group_size=0
):
    """Return y[g] plus the dequantized product over group g of the inner dim: x1 [M, K], x2 [K, N]."""
    a, b = decoded(x1), decoded(x2)
    if is_microscaled(scale2, b):
        a, b = scaled_blocks(a, scale1, -1), scaled_blocks(b, scale2, -2)
        return (y + split_inner(a, b, group_ends(group_list, group_list_type))).to(y.dtype)
    made = split_inner(wide(a), wide(b), group_ends(group_list, group_list_type))
    for scale in (scale1, scale2):
        made = made if scale is None else made * scale.reshape(-1, 1, 1)
    return (y + made).to(y.dtype)


# The feed-forward block

_UNITS = {"geglu": F.gelu, "swiglu": F.silu, "reglu": torch.relu}
_PLAIN_UNITS = {"fastgelu": ACTIVATIONS[4], "gelu": F.gelu, "relu": torch.relu, "silu": F.silu}


def activated(x, name):
    """Apply an activation by name; gated ones halve the width."""
    if name in _PLAIN_UNITS:
        return _PLAIN_UNITS[name](x)
    a, b = x.chunk(2, -1)
    return _UNITS[name](a) * b


def ffn(
    x, weight1, weight2, expert_tokens, bias1, bias2, scale, offset, deq_scale1, deq_scale2, antiquant_scale1,
    antiquant_scale2, antiquant_offset1, antiquant_offset2, *, activation, inner_precise=0, output_dtype=-1,
    tokens_index_flag=False,
):  # fmt: skip
    """Return activation(x @ w1 + b1) @ w2 + b2, with the weights of each row's expert, if any."""
    rows = x.flatten(0, -2)
    groups = None if expert_tokens is None else as_tensor(expert_tokens, x)
    kind = ENDS if tokens_index_flag else 1
    hidden = _layer(rows, weight1, bias1, deq_scale1, antiquant_scale1, antiquant_offset1, groups, kind)
    hidden = activated(hidden, activation)
    if scale is not None:
        hidden = static(hidden, scale, offset, INT8)
    elif x.is_floating_point():
        hidden = hidden.to(x.dtype)
    y = _layer(hidden, weight2, bias2, deq_scale2, antiquant_scale2, antiquant_offset2, groups, kind)
    half = torch.float16 if not x.is_floating_point() else x.dtype
    return y.to(half if output_dtype == -1 else RESULT_TYPES[output_dtype]).reshape(*x.shape[:-1], -1)


def _layer(x, weight, bias, deq_scale, antiquant_scale, antiquant_offset, groups, kind):
    parts = (bias, deq_scale, antiquant_scale, antiquant_offset)
    biases, scales, anti, anti_offset = ([] if part is None else [part] for part in parts)
    if groups is not None:
        return _rows(x, [weight], biases, scales, [], anti, anti_offset, groups, None, kind).float()
    return _pairs([x], [weight], biases, scales, anti, anti_offset, None)[0].float()


def _listed(parts):
    return list(parts or [])


def _result_number(code):
    kind = ir_type(code)
    return _NUMBERS.get(kind, -1)


def _outputs(given):
    return len(given["x"]) if _group_type(given["group_type"], given["group_list"]) == NO_SPLIT else 1


def _group_type(kind, group_list):
    if kind is not None:
        return kind
    return NO_SPLIT if group_list is None else SPLIT_ROWS


def _tokens(counts, ends):
    return ends if counts is None else counts


def _bias_of(bias, weights):
    """Return the bias, except with int4 weights, where it only compensates how the device computes."""
    return None if dtype_of(weights[0]) == torch.int32 else bias


_LISTS = ("bias", "scale", "offset", "antiquant_scale", "antiquant_offset")
_GROUPED = {
    **{name: made(_listed, name) for name in _LISTS},
    "per_token_scale": made(lambda parts: parts[0] if parts else None, "per_token_scale"),
    "dtype": made(_result_number, "output_dtype"),
    "group_type": made(_group_type, "group_type", "group_list"),
}
# Hints, type codes that the data imply, and inputs of a fused quantization that no chip supports yet.
_GROUPED_IGNORED = ("activation_input", "activation_quant_scale", "activation_quant_offset")
_CODES = ("x_dtype", "weight_dtype", "scale_dtype", "per_token_scale_dtype")
_TURNS: dict[str, Any] = {"of_bytes": E2M1, "flag": "transpose_weight"}
_HELD = {
    "x": operand("x", "x_dtype", of_bytes=E2M1),
    "weight": weight("weight", "x", ("weight_dtype", "x_dtype"), **_TURNS),
}
_HELD_LISTS = {"x": operand("x", of_bytes=E2M1), "weight": weight("weight", "x", **_TURNS)}
_ADDED = {
    "scale2": "x2_scale",
    "scale1": "x1_scale",
    "y": "self",
    "group_size": made(packed_group_size, "group_sizes"),
}
_HELD_ADDED = {
    "x1": operand("x1", "x1_dtype", of_bytes=E2M1),
    "x2": operand("x2", "x2_dtype", of_bytes=E2M1),
    "scale1": scale_of("x1_scale"),
    "scale2": scale_of("x2_scale"),
}
_ADDED_CODES = ("x1_dtype", "x2_dtype", "x1_scale_dtype", "x2_scale_dtype")
ROWS = (
    NpuOp(
        "npu_grouped_matmul",
        "GroupedMatmul",
        grouped_matmul,
        _GROUPED,
        count=_outputs,
        holds=_HELD,
        ignored=(*_GROUPED_IGNORED, *_CODES),
    ),
    NpuOp(
        "npu_grouped_matmul.List",
        "GroupedMatmul",
        grouped_matmul,
        _GROUPED,
        count=_outputs,
        holds=_HELD_LISTS,
        ignored=_GROUPED_IGNORED,
    ),
    NpuOp(
        "npu_grouped_matmul_finalize_routing",
        "GroupedMatmulFinalizeRouting",
        grouped_matmul_finalize_routing,
        {"dtype": made(_FINALIZED_NUMBERS.__getitem__, "dtype")},
        holds={
            "x": operand("x", "x_dtype", of_bytes=E2M1),
            "w": weight("w", "x", ("w_dtype", "x_dtype"), of_bytes=E2M1, flag="transpose_w"),
            "scale": scale_of("scale"),
            "pertoken_scale": scale_of("pertoken_scale"),
        },
        ignored=("scale_dtype", "pertoken_scale_dtype"),
    ),
    NpuOp(
        "npu_grouped_matmul_swiglu_quant_v2",
        "GroupedMatmulSwigluQuantV2",
        grouped_matmul_swiglu_quant,
        {
            "weight_assist_matrix": made(_listed, "weight_assist_matrix"),
            "dequant_dtype": made(ir_type_or(0), "dequant_dtype"),
            "bias": made(_bias_of, "bias", "weight"),
        },
        holds=_HELD,
        makes={0: made(ir_type, "quant_dtype")},
        ignored=("weight_scale_dtype", "x_scale_dtype"),
    ),
    NpuOp(
        "npu_quant_grouped_matmul_dequant",
        "QuantGroupedMatmulDequant",
        quant_grouped_matmul_dequant,
        {"x_quant_mode": "quant_mode"},
    ),
    NpuOp(
        "npu_add_quant_gmm",
        "QuantGroupedMatmulInplaceAdd",
        quant_grouped_matmul_inplace_add,
        _ADDED,
        copies=("self",),
        holds=_HELD_ADDED,
        ignored=_ADDED_CODES,
    ),
    NpuOp(
        "npu_add_quant_gmm_",
        "QuantGroupedMatmulInplaceAdd",
        quant_grouped_matmul_inplace_add,
        _ADDED,
        writes={"self": 0},
        holds=_HELD_ADDED,
        ignored=_ADDED_CODES,
    ),
    NpuOp(
        "npu_ffn",
        "FFN",
        ffn,
        {
            "expert_tokens": made(_tokens, "expert_tokens", "expert_tokens_index"),
            "tokens_index_flag": made(lambda ends: ends is not None, "expert_tokens_index"),
            "output_dtype": made(_result_number, "output_dtype"),
        },
        holds={"weight1": weight("weight1", "x"), "weight2": operand("weight2")},
    ),
)
IN_PLACE = (InPlaceOp("npu_add_quant_gmm_", "npu_add_quant_gmm", {"self": 0}, ("self",)),)
