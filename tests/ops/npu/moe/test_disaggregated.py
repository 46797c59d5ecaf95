"""Ops of separate attention and expert workers: sizes, conversion and export, and what running one says."""

from __future__ import annotations

import pytest
import torch

import torchair
from tests.convert.harness import converted
from tests.ops.compiled import MODES, listed
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import NotPossible
from torchair.passes.ge.dead_code import remove_dead_ops

npu = torch.ops.npu
CONTEXT = torch.zeros(1024, dtype=torch.int8)


def numbers(*shape, dtype=torch.int32):
    return torch.zeros(shape, dtype=dtype)


def to_ffn(x, *rest):
    npu.npu_attention_to_ffn(x, *rest, "group", 2, [1, 2], [1, 2], [1, 2], 4)
    return x + 1


def to_attention(x, *rest):
    npu.npu_ffn_to_attention(x, *rest, "group", 2, [1, 2], [1, 2])
    return x + 1


ROWS = (torch.ones(18, 16, dtype=torch.float16), *(numbers(18) for _ in range(4)))
# name -> (function, arguments, IR op, sizes and types of the results)
CALLS = {
    "npu_attention_to_ffn": (
        to_ffn,
        (torch.ones(1, 2, 8, dtype=torch.float16), numbers(1), numbers(1), numbers(1), numbers(1, 2, 1, 2),
         numbers(1, 4, 2)),
        "AttentionToFFN",
        [((1, 2, 8), torch.float16)],
    ),
    "npu_ffn_to_attention": (
        to_attention,
        (*ROWS, numbers(1, dtype=torch.int64)),
        "FFNToAttention",
        [((18, 16), torch.float16)],
    ),
    "npu_ffn_worker_batching": (
        lambda c: npu.npu_ffn_worker_batching(c, 4, [2, 3, 3, 16], token_dtype=2),
        (CONTEXT,),
        "FfnWorkerBatching",
        [((18, 16), torch.int8), ((4, 2), torch.int64), *[((18,), torch.int32)] * 4, ((18,), torch.float32),
         ((1,), torch.int64)],
    ),
    "npu_attention_worker_combine": (
        lambda c, s, n: npu.npu_attention_worker_combine(c, s, n, 16, token_dtype=1),
        (CONTEXT, torch.ones(5, 3), numbers(1)),
        "AttentionWorkerCombine",
        [((5, 16), torch.bfloat16), ((1,), torch.int32)],
    ),
    "attention_worker_scheduler": (
        npu.attention_worker_scheduler.default,
        (CONTEXT,),
        "AttentionWorkerScheduler",
        [((1024,), torch.int8)],
    ),
    "ffn_worker_scheduler": (
        lambda c: npu.ffn_worker_scheduler(c, sync_group_size=2),
        (CONTEXT,),
        "FfnWorkerScheduler",
        [((1024,), torch.int8)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_sizes_and_conversion(name):
    call, args, ir, expected = CALLS[name]
    with torch._subclasses.FakeTensorMode() as mode:
        told = listed(call(*map(mode.from_tensor, args)))
    assert [(tuple(x.shape), x.dtype) for x in told] == expected
    graph, report, _, _ = converted(call, args)
    remove_dead_ops(graph, None)
    assert ir in [op.type for op in graph.ops]
    assert not report.fallbacks


@pytest.mark.parametrize("name", CALLS)
def test_disaggregated_op_error_names_what_it_needs(name):
    call, args, *_ = CALLS[name]
    with pytest.raises(NotPossible, match=f"{name} runs only with the vendor's runtime"):
        call(*args)
    for mode in MODES:
        torch._dynamo.reset()
        config = CompilerConfig()
        config.mode = mode
        config.engine_config.codegen = "eager"
        backend = torchair.get_npu_backend(compiler_config=config)
        with pytest.raises(NotPossible, match="vendor's runtime"):
            torch.compile(call, backend=backend, fullgraph=True)(*args)


def test_in_place_forms_do_not_write_before_they_fail():
    for op in (npu.attention_worker_scheduler_, npu.ffn_worker_scheduler_):
        context = CONTEXT.clone()
        with pytest.raises(NotPossible, match="vendor's runtime"):
            op(context)
        assert torch.equal(context, CONTEXT)


def test_a_graph_of_an_expert_worker_is_exported(tmp_path):
    class Worker(torch.nn.Module):
        def forward(self, context):
            context = npu.ffn_worker_scheduler(context)
            rows, _, *where, scale, count = npu.npu_ffn_worker_batching(context, 4, [2, 3, 3, 16])
            npu.npu_ffn_to_attention(rows * 2, *where, count, "group", 2, [1, 2], [1, 2])
            return scale

    torchair.dynamo_export(CONTEXT, model=Worker(), export_path=str(tmp_path), export_name="worker")
    text = next(tmp_path.rglob("*.air")).read_bytes()
    assert all(op in text for op in (b"FfnWorkerScheduler", b"FfnWorkerBatching", b"FFNToAttention"))
