"""Transposed weights of quantised and grouped products: a flag, and no Transpose; right numbers always."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.convert.harness import compare, converted
from tests.ops.compiled import compiles, ints, listed, rand
from tests.support.slow import STATIC_FIRST
from torchair import ge
from torchair.engine.interpret import interpret
from torchair.ge.files.verify import verify, verify_emitted
from torchair.ge.graph import Graph, TensorResult
from torchair.ops.numerics.formats import INT4, unpack
from torchair.passes import GE_PASSES, PassContext, run
from torchair.passes.ge.dead_code import remove_dead_ops
from torchair.passes.ge.fold_transpose import move_transpose_into_mm
from torchair.passes.ge.transpose_bitcast import move_mm_weight_transpose_after_bitcast

npu = torch.ops.npu
f16, i8, i32, u8, fp8 = torch.float16, torch.int8, torch.int32, torch.uint8, torch.float8_e4m3fn
ENDS = torch.tensor([2, 6])
X8 = ints(-128, 128, 6, 64, dtype=i8)
MOVED, FOLDED = "move_mm_weight_transpose_after_bitcast", "move_transpose_into_mm"


def words(*shape: int) -> torch.Tensor:
    """Eight values of four bits in each."""
    return ints(-(2**31), 2**31, *shape, dtype=i32)


def some_bytes(*shape: int) -> torch.Tensor:
    return ints(0, 256, *shape, dtype=u8)


def hifloats(*shape: int) -> torch.Tensor:
    """Finite ones."""
    return npu.npu_dtype_cast(rand(*shape), 290)


def grouped(x: Any, w: Any, **more: Any) -> Any:
    return npu.npu_grouped_matmul([x], [w], group_type=0, split_item=3, **more)


# fn, arguments, op, its flag, how many transposes are moved behind a bit-cast, how many others become a flag
CASES: dict[str, tuple[Any, tuple[Any, ...], str, str, int, int]] = {
    "int8": (
        lambda a, b, s: npu.npu_quant_matmul(a, b.t(), s, output_dtype=5),
        (X8, ints(-128, 128, 16, 64, dtype=i8), rand(16)),
        "QuantBatchMatmulV3", "transpose_x2", 0, 1,
    ),
    "fp8": (
        lambda a, b, s: npu.npu_quant_matmul(a, b.t(), s, output_dtype=15),
        (rand(6, 64).to(fp8), rand(16, 64).to(fp8), rand(16)),
        "QuantBatchMatmulV4", "transpose_x2", 0, 1,
    ),
    "fp8 in bytes": (
        lambda a, b, s: npu.npu_quant_matmul(a, b.t().view(fp8), s, output_dtype=15),
        (rand(6, 64).to(fp8), rand(16, 64).to(fp8).view(u8), rand(16)),
        "QuantBatchMatmulV4", "transpose_x2", 1, 0,
    ),
    "int4": (
        lambda a, b, s: npu.npu_quant_matmul(a, b.t(), s, output_dtype=15, group_sizes=[0, 0, 16]),
        (X8, words(16, 8), rand(4, 16)),
        "QuantBatchMatmulV4", "transpose_x2", 0, 0,
    ),
    "fp4": (
        lambda a, b, s: npu.npu_quant_matmul(a, b.t(), s, output_dtype=15),
        (rand(6, 64).to(fp8), some_bytes(16, 32), rand(16)),
        "QuantBatchMatmulV4", "transpose_x2", 0, 0,
    ),
    "groups": (
        lambda x, w, g: grouped(x, w.mT, group_list=g),
        (rand(6, 64, dtype=f16), rand(2, 16, 64, dtype=f16), ENDS),
        "GroupedMatmul", "transpose_weight", 0, 1,
    ),
    "groups int8 in bytes": (
        lambda x, w, s, g: grouped(x, w.mT.view(i8), scale=[s], output_dtype=torch.int32, group_list=g),
        (X8, some_bytes(2, 16, 64), rand(2, 16, dtype=torch.bfloat16), ENDS),
        "GroupedMatmul", "transpose_weight", 1, 0,
    ),
    "groups int4": (
        lambda x, w, s, g: grouped(x, w.mT, antiquant_scale=[s], antiquant_offset=[s], group_list=g),
        (rand(6, 64, dtype=f16), words(2, 16, 8), rand(2, 16, dtype=f16), ENDS),
        "GroupedMatmul", "transpose_weight", 0, 0,
    ),
    "list": (
        lambda x, y, v, w: npu.npu_grouped_matmul([x, y], [v.t(), w.t()], group_type=-1, split_item=0),
        (rand(3, 8, dtype=f16), rand(2, 4, dtype=f16), rand(5, 8, dtype=f16), rand(6, 4, dtype=f16)),
        "GroupedMatmul", "transpose_weight", 0, 2,
    ),
    "routed int8": (
        lambda x, w, s, t, g: npu.npu_grouped_matmul_finalize_routing(
            x, w.mT, g, scale=s, pertoken_scale=t, output_bs=6
        ),
        (X8, ints(-128, 128, 2, 16, 64, dtype=i8), rand(2, 16), rand(6), ENDS),
        "GroupedMatmulFinalizeRouting", "transpose_w", 0, 1,
    ),
    "routed hifloat8": (
        lambda x, w, s, t, g: npu.npu_grouped_matmul_finalize_routing(
            x, w.mT, g, scale=s, pertoken_scale=t, output_bs=6, x_dtype=290, w_dtype=290
        ),
        (hifloats(6, 64), hifloats(2, 16, 64), rand(2, 16), rand(6), ENDS),
        "GroupedMatmulFinalizeRouting", "transpose_w", 1, 0,
    ),
    "routed int4": (
        lambda x, w, s, t, g: npu.npu_grouped_matmul_finalize_routing(
            x, w.mT, g, scale=s, pertoken_scale=t, output_bs=6
        ),
        (X8, words(2, 16, 8), rand(2, 1, 16), rand(6), ENDS),
        "GroupedMatmulFinalizeRouting", "transpose_w", 0, 0,
    ),
    "gated": (
        lambda x, w, s, t, g: npu.npu_grouped_matmul_swiglu_quant_v2(x, [w.mT], [s], t, g),
        (X8, ints(-128, 128, 2, 16, 64, dtype=i8), rand(2, 16), rand(6), ENDS),
        "GroupedMatmulSwigluQuantV2", "transpose_weight", 0, 1,
    ),
}  # fmt: skip


@STATIC_FIRST
@pytest.mark.parametrize("name", CASES)
def test_weights_are_taken_transposed(name: str, dynamic: bool) -> None:
    fn, args, op_type, flag, moved, folded = CASES[name]
    graph, report, _, _ = converted(fn, args, dynamic)
    assert not report.fallbacks
    context = PassContext(order="StableRDFS")
    run(GE_PASSES, graph, context)
    assert (context.changes[MOVED], context.changes[FOLDED]) == (moved, folded)
    (product,) = [op for op in graph.ops if op.type == op_type]
    assert product.attributes()[flag] is True
    assert not [op.type for op in graph.ops if op.type in ("Transpose", "Cast", "Identity")]
    verify(graph)
    verify_emitted(graph)
    got = interpret(graph, list(args), torch.device("cpu"))
    compare(got, listed(fn(*args)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["fp8 in bytes", "int4", "fp4", "groups int4", "routed hifloat8"])
def test_compiled_they_are_eagers(name: str) -> None:
    fn, args, *_ = CASES[name]
    compiles(fn, args, "max-autotune", False, rtol=1e-3, atol=1e-3)


def test_a_list_with_one_transposed_weight_stays() -> None:
    fn = lambda x, v, w: npu.npu_grouped_matmul([x, x], [v.t(), w], group_type=-1, split_item=0)  # noqa: E731
    args = (rand(3, 8, dtype=f16), rand(5, 8, dtype=f16), rand(8, 5, dtype=f16))
    graph, *_ = converted(fn, args)
    context = PassContext()
    assert move_transpose_into_mm(graph, context) == 0
    assert "only some tensors of weight" in context.skips[0].reason
    compare(interpret(graph, list(args), torch.device("cpu")), listed(fn(*args)))


def by_hand(args: Any, product: Any, kind: int, keep_dim: bool | None) -> Graph:
    """A product with the bits of a transposed weight, as another producer may write it."""
    graph, *_ = converted(lambda x, w: (x.clone(), w.clone()), args)
    rows, weight = (op.outputs[0] for op in graph.inputs)
    graph.remove([op for op in graph.ops if op not in graph.inputs])
    with graph:
        y = product(rows, ge.Bitcast(ge.Transpose(weight, [1, 0]), type=kind, keep_dim=keep_dim))
        ge.NetOutput([y])
    graph.results = [TensorResult(y)]
    return graph


def plain(x: Any, w: Any) -> Any:
    return ge.MatMulV2(x, w, None, None)


def quantised(x: Any, w: Any) -> Any:
    half = ge.DataType.DT_FLOAT16
    return ge.QuantBatchMatmulV3(x, w, ge.Const(torch.ones(1)), None, None, None, dtype=half)


# Words [N / so many, K] that are read [K, N] behind their transpose
SPLIT: dict[str, tuple[Any, int, torch.Tensor, torch.Tensor, Any]] = {
    "halves": (
        plain, ge.DataType.DT_FLOAT16, rand(3, 2, dtype=f16), rand(4, 2),
        lambda x, w: x @ w.t().contiguous().view(f16),
    ),
    "int4": (
        quantised, INT4, ints(-8, 8, 3, 2, dtype=i8), words(4, 2),
        lambda x, w: (x.int() @ unpack(w.t().contiguous(), INT4).int()).half(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPLIT)
def test_what_is_split_behind_its_transpose_stays_there(name: str) -> None:
    """No flag expresses it: the values of a word lie along the dim that the transpose has made the last."""
    product, kind, x, w, formula = SPLIT[name]
    graph, context = by_hand((x, w), product, kind, True), PassContext(order="StableRDFS")
    assert move_mm_weight_transpose_after_bitcast(graph, context) == 0
    assert "split or joined" in context.skips[0].reason
    run(GE_PASSES, graph, context)
    assert [op.type for op in graph.ops].count("Transpose") == 1
    (got,) = interpret(graph, [x, w], torch.device("cpu"))
    torch.testing.assert_close(got, formula(x, w))


def test_a_bit_cast_that_others_read_stays_for_them() -> None:
    x, w = rand(3, 4, dtype=f16), rand(5, 4, dtype=f16)
    graph = by_hand((x, w.view(torch.int16)), plain, ge.DataType.DT_FLOAT16, None)
    (cast,) = [op.outputs[0] for op in graph.ops if op.type == "Bitcast"]
    graph.results.append(TensorResult(cast))
    assert move_mm_weight_transpose_after_bitcast(graph, PassContext()) == 1
    assert move_transpose_into_mm(graph, PassContext()) == 0
    remove_dead_ops(graph, PassContext())
    verify(graph)
    assert [op.type for op in graph.ops].count("Bitcast") == 2
    y, kept = interpret(graph, [x, w.view(torch.int16)], torch.device("cpu"))
    torch.testing.assert_close(y, x @ w.t())
    torch.testing.assert_close(kept, w.t())
