"""Define ops for separate attention and expert workers, which exchange tokens through windows of shared
memory.

Only the vendor's runtime knows the layout of these windows, and of the schedule context that describes them.
So these ops have shapes, and graphs with them can be converted and exported; running one raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect

from torchair.core.errors import NotPossible, UnsupportedOp
from torchair.core.torch_private.operators.schemas import register_fake
from torchair.ops.npu.common.op_spec import InPlaceOp, NpuOp

# Op that replaces every call of these ops: sizes of all results, their numbers of dims, their types.
_SCHEMA = "(str op, Tensor[] given, SymInt[] sizes, int[] dims, ScalarType[] dtypes) -> Tensor[]"
_NAME = "run_by_workers"
_library = torch.library.Library("torchair", "FRAGMENT")
_library.define(_NAME + _SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
TOKEN_TYPES = {0: torch.float16, 1: torch.bfloat16, 2: torch.int8}


def _refuse(op: str, given: Sequence[torch.Tensor], sizes: Any, dims: Any, dtypes: Any) -> list[torch.Tensor]:
    raise NotPossible(
        f"{op} runs only with the vendor's runtime for separate attention and expert workers",
        got=", ".join(f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}" for x in given),
        near="conversion to the IR and export are supported",
        next="export the graph with torchair.dynamo_export and run it with that runtime",
    )


def _fake(
    op: str, given: Sequence[torch.Tensor], sizes: Sequence[Any], dims: Sequence[int], dtypes: Sequence[Any]
) -> list[torch.Tensor]:
    ends = [sum(dims[: number + 1]) for number in range(len(dims))]
    return [
        given[0].new_empty(list(sizes[end - count : end]), dtype=dtype)
        for end, count, dtype in zip(ends, dims, dtypes, strict=True)
    ]


_library.impl(_NAME, _refuse, "CompositeExplicitAutograd")
register_fake(_library, _NAME, _fake)
has_side_effect(torch.ops.torchair.run_by_workers.default)


def vendor_results(op, *given, results=()):
    """Return the results of an op of the vendor's runtime, by their sizes and types."""
    sizes = [size for shape, _ in results for size in shape]
    tensors = [x for x in given if x is not None]
    dims, kinds = [len(shape) for shape, _ in results], [dtype for _, dtype in results]
    return tuple(torch.ops.torchair.run_by_workers(op, tensors, sizes, dims, kinds))


def token_type(number, known):
    """Return the type of tokens by its number."""
    if number not in known:
        raise UnsupportedOp(f"token_dtype {number}", near=", ".join(map(str, known)))
    return TOKEN_TYPES[number]


def attention_to_ffn(
    x, session_id, micro_batch_id, layer_id, expert_ids, expert_rank_table, scales, active_mask, *, group,
    world_size, ffn_token_info_table_shape, ffn_token_data_shape, attn_token_info_table_shape, moe_expert_num,
    quant_mode=0, sync_flag=0, ffn_start_rank_id=0,
):  # fmt: skip
    """Send tokens to the workers of their experts."""
    vendor_results(
        "npu_attention_to_ffn", x, session_id, micro_batch_id, layer_id, expert_ids, expert_rank_table,
        scales, active_mask,
    )  # fmt: skip
    return ()


def ffn_to_attention(
    x, session_ids, micro_batch_ids, token_ids, expert_offsets, actual_token_num, attn_rank_table, *, group,
    world_size, token_info_table_shape, token_data_shape,
):  # fmt: skip
    """Send rows back to the workers of their tokens."""
    vendor_results(
        "npu_ffn_to_attention", x, session_ids, micro_batch_ids, token_ids, expert_offsets, actual_token_num,
        attn_rank_table,
    )  # fmt: skip
    return ()


def ffn_worker_batching(
    schedule_context, *, expert_num, max_out_shape, token_dtype=0, need_schedule=0, layer_num=0
):
    """Return (tokens by expert, (expert, count) pairs, then for each row: session, micro batch, token, place,
    scale; the number of rows).
    """
    *counts, width = max_out_shape
    rows = math.prod(counts)
    numbers = [([rows], torch.int32)] * 4
    results = [
        ([rows, width], token_type(token_dtype, TOKEN_TYPES)),
        ([expert_num, 2], torch.int64),
        *numbers,
        ([rows], torch.float32),
        ([1], torch.int64),
    ]
    return vendor_results("npu_ffn_worker_batching", schedule_context, results=results)


def attention_worker_combine(schedule_context, expert_scales, layer_id, *, hidden_size=0, token_dtype=0):
    """Return (weighted sums of the returned rows, the number of the next layer)."""
    kind = token_type(token_dtype, (0, 1))
    results = [([expert_scales.shape[0], hidden_size], kind), (layer_id.shape, torch.int32)]
    return vendor_results(
        "npu_attention_worker_combine", schedule_context, expert_scales, layer_id, results=results
    )


def attention_worker_scheduler(schedule_context):
    """Return the context after the rows of the experts arrived."""
    return _updated("attention_worker_scheduler", schedule_context)


def ffn_worker_scheduler(schedule_context, *, sync_group_size=1, execute_mode=0):
    """Return the context after the tokens of the attention workers arrived."""
    return _updated("ffn_worker_scheduler", schedule_context)


def _updated(op, context):
    return vendor_results(op, context, results=[(context.shape, context.dtype)])[0]


_CONTEXT = {"schedule_context": "self"}
ROWS = (
    NpuOp("npu_attention_to_ffn", "AttentionToFFN", attention_to_ffn, outputs=()),
    NpuOp("npu_ffn_to_attention", "FFNToAttention", ffn_to_attention, outputs=()),
    NpuOp("npu_ffn_worker_batching", "FfnWorkerBatching", ffn_worker_batching),
    NpuOp(
        "npu_attention_worker_combine",
        "AttentionWorkerCombine",
        attention_worker_combine,
        ignored=("need_schedule",),
    ),
    *(
        row
        for op, ir, fn in (
            ("attention_worker_scheduler", "AttentionWorkerScheduler", attention_worker_scheduler),
            ("ffn_worker_scheduler", "FfnWorkerScheduler", ffn_worker_scheduler),
        )
        for row in (
            NpuOp(op, ir, fn, _CONTEXT, copies=("self",)),
            NpuOp(f"{op}_", ir, fn, _CONTEXT, writes={"self": 0}),
        )
    ),
)
IN_PLACE = tuple(
    InPlaceOp(f"{op}_", op, {"self": 0}, ("self",))
    for op in ("attention_worker_scheduler", "ffn_worker_scheduler")
)
ACTING = ("npu_attention_to_ffn", "npu_ffn_to_attention")
