"""Lists of numbers become inputs where they are inputs, and stay where they are computed or constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from torchair.core.torch_private.fake.fake_tensors import make_fx
from torchair.passes.fx.cleanup.lists_to_tensors import MARK, move_host_lists
from torchair.passes.pass_manager import PassContext

npu, air = torch.ops.npu, torch.ops.air


def traced(lengths: Callable[..., list[Any]]) -> fx.GraphModule:
    def attend(q: torch.Tensor, k: torch.Tensor, a: int, b: int) -> Any:
        return npu.npu_fused_infer_attention_score(
            q, k, k, num_heads=2, input_layout="BSND", actual_seq_lengths_kv=lengths(a, b)
        )[0]

    q, k = torch.randn(2, 1, 2, 8), torch.randn(2, 16, 2, 8)
    gm = make_fx(attend, tracing_mode="symbolic")(q, k, 5, 7)
    (call,) = gm.graph.find_nodes(op="call_function", target=npu.npu_fused_infer_attention_score.default)
    a, b = list(gm.graph.find_nodes(op="placeholder"))[2:4]
    call.kwargs = {**call.kwargs, "actual_seq_lengths_kv": lengths(a, b)}
    return gm


def test_inputs_become_one_input_on_the_device() -> None:
    gm = traced(lambda a, b: [a, b, 3][:2])
    assert move_host_lists(gm, PassContext()) == 1
    (call,) = gm.graph.find_nodes(op="call_function", target=air.npu_fused_infer_attention_score.default)
    made = call.kwargs["actual_seq_lengths_kv"]
    assert made.op == "placeholder"
    assert made.meta[MARK] == (("index", 2), ("index", 3))
    assert (made.meta["val"].shape, made.meta["val"].dtype) == ((2,), torch.int64)
    q, k = torch.randn(2, 1, 2, 8), torch.randn(2, 16, 2, 8)
    want = npu.npu_fused_infer_attention_score(
        q, k, k, num_heads=2, input_layout="BSND", actual_seq_lengths_kv=[4, 9]
    )[0]
    torch.testing.assert_close(gm(q, k, 4, 9, torch.tensor([4, 9])), want)


@pytest.mark.parametrize("lengths", [lambda a, b: [5, 7]])
def test_constant_lists_stay_in_the_graph(lengths: Callable[..., list[Any]]) -> None:
    gm = traced(lengths)
    assert move_host_lists(gm, PassContext()) == 0
    assert len(list(gm.graph.find_nodes(op="placeholder"))) == 4


def test_computed_length_stays_with_reason() -> None:
    gm = traced(lambda a, b: [a, b])
    call = next(
        iter(gm.graph.find_nodes(op="call_function", target=npu.npu_fused_infer_attention_score.default))
    )
    a, b = call.kwargs["actual_seq_lengths_kv"]
    with gm.graph.inserting_before(call):
        more = gm.graph.call_function(torch.add, (a, 1))
    call.kwargs = {**call.kwargs, "actual_seq_lengths_kv": [more, b]}
    context = PassContext()
    assert move_host_lists(gm, context) == 0
    assert [skip.reason for skip in context.skips] == [
        "a length is computed in the graph, so it stays part of the key"
    ]
