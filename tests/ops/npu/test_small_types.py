"""Types that torch lacks: in the IR they have their own name and one element per value."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.backend.export import wire
from tests.convert.harness import check, converted
from tests.engine.kernels import check as check_kernel
from tests.ops.compiled import ints, rand, taken
from tests.support.slow import STATIC_FIRST
from torchair import ge
from torchair.core import dtypes
from torchair.ge.files.verify import verify_emitted
from torchair.ge.graph import Graph, Tensor
from torchair.ops.numerics.formats import E1M2, E2M1, INT4, decode, pack, unpack

npu = torch.ops.npu
f16, bf16, i8, i32, u8 = torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.uint8
X = rand(6, 64, dtype=f16)
GAMMA = rand(64, dtype=f16)
I32 = ge.DataType.DT_INT32


def words(*shape: int, seed: int = 0) -> torch.Tensor:
    return ints(-(2**31), 2**31, *shape, dtype=i32, seed=seed)


def some_bytes(*shape: int) -> torch.Tensor:
    return ints(0, 256, *shape, dtype=u8)


def powers(*shape: int) -> torch.Tensor:
    return ints(124, 130, *shape, 2, dtype=u8)


def routing() -> torch.Tensor:
    return torch.tensor([[0, 1], [2, 3], [1, 2], [3, 0], [0, 2], [1, 3]], dtype=i32)


# fn, arguments, the op, its slot (a number: an output), the type there, the sizes there
CASES: dict[str, tuple[Any, tuple[Any, ...], str, str | int, str, tuple[int, ...]]] = {
    "mx": (
        lambda x: npu.npu_dynamic_mx_quant(x, dst_type=296),
        (X,),
        "DynamicMxQuant",
        0,
        "FLOAT4_E2M1",
        (6, 64),
    ),
    "mx_e1m2": (
        lambda x: npu.npu_dynamic_mx_quant(x, axis=0, dst_type=297),
        (X,),
        "DynamicMxQuant",
        0,
        "FLOAT4_E1M2",
        (6, 64),
    ),
    "mx_two_axes": (
        lambda x: npu.npu_dynamic_mx_quant_with_dual_axis(x, dst_type=296),
        (X,),
        "DynamicMxQuantWithDualAxis",
        2,
        "FLOAT4_E2M1",
        (6, 64),
    ),
    "mx_tiles": (
        lambda x: npu.npu_dynamic_block_mx_quant(x, dst_type=296),
        (X,),
        "DynamicBlockMxQuant",
        0,
        "FLOAT4_E2M1",
        (6, 64),
    ),
    "mx_two_levels": (
        npu.npu_dynamic_dual_level_mx_quant,
        (X,),
        "DynamicDualLevelMxQuant",
        0,
        "FLOAT4_E2M1",
        (6, 64),
    ),
    "mx_groups": (
        lambda x, g: npu.npu_grouped_dynamic_mx_quant(x, g, dst_type=296),
        (X, torch.tensor([2, 6], dtype=i32)),
        "GroupedDynamicMxQuant",
        0,
        "FLOAT4_E2M1",
        (6, 64),
    ),
    "mx_swiglu": (
        lambda x: npu.npu_swiglu_mx_quant(x, dst_type=296),
        (X,),
        "SwigluMxQuant",
        0,
        "FLOAT4_E2M1",
        (6, 32),
    ),
    "mx_norm": (
        lambda x, g: npu.npu_rms_norm_dynamic_mx_quant(x, g, dst_type=296)[:2],
        (X, GAMMA),
        "RmsNormDynamicMxQuant",
        0,
        "FLOAT4_E2M1",
        (6, 64),
    ),
    "mx_added_norm": (
        lambda x, g: npu.npu_add_rms_norm_dynamic_mx_quant(x, x + 1, g, dst_type=296)[:3],
        (X, GAMMA),
        "AddRmsNormDynamicMxQuant",
        0,
        "FLOAT4_E2M1",
        (6, 64),
    ),
    "rows": (lambda x: npu.npu_dynamic_quant(x, dst_type=285), (X,), "DynamicQuantV2", 0, "INT4", (6, 64)),
    "rows_lopsided": (
        lambda x: npu.npu_dynamic_quant_asymmetric(x, dst_type=285),
        (X,),
        "DynamicQuantV2",
        0,
        "INT4",
        (6, 64),
    ),
    "multiplied": (
        lambda x, s: npu.npu_quantize(x, s, None, 16, -1, False),
        (X * 3, GAMMA),
        "AscendQuantV2",
        0,
        "INT4",
        (6, 64),
    ),
    "groups": (
        lambda x, s, g: npu.npu_group_quant(x, s, g, dst_dtype=torch.quint4x2),
        (X, rand(2, 64), torch.tensor([2, 6], dtype=i32)),
        "GroupQuant",
        0,
        "INT4",
        (6, 64),
    ),
    "rotated": (
        lambda x, r: npu.npu_rotate_quant(x, r, dst_dtype=285),
        (X, rand(8, 8, dtype=f16)),
        "RotateQuant",
        0,
        "INT4",
        (6, 64),
    ),
    "kronecker": (
        npu.npu_kronecker_quant,
        (rand(2, 4, 8, dtype=f16), rand(4, 4, dtype=f16), rand(8, 8, dtype=f16)),
        "FlatQuant",
        0,
        "INT4",
        (2, 4, 8),
    ),
    "kronecker_fp4": (
        lambda x, a, b: npu.npu_kronecker_quant(x, a, b, None, 296),
        (rand(2, 4, 8, dtype=f16), rand(4, 4, dtype=f16), rand(8, 8, dtype=f16)),
        "FlatQuant",
        0,
        "FLOAT4_E2M1",
        (2, 32),
    ),
    "norm": (
        lambda x, g: npu.npu_add_rms_norm_dynamic_quant(x, x + 1, g, y_dtype=285),
        (X, GAMMA),
        "AddRmsNormDynamicQuant",
        0,
        "INT4",
        (6, 64),
    ),
    "swiglu": (
        lambda x: npu.npu_dequant_swiglu_quant(x, quant_mode=1, dst_type=296),
        (X,),
        "DequantSwigluQuant",
        0,
        "FLOAT4_E2M1",
        (6, 32),
    ),
    "routing": (
        lambda x, e: npu.npu_moe_init_routing_v2(x, e, expert_num=4, quant_mode=13),
        (X, routing()),
        "MoeInitRoutingV3",
        0,
        "INT4",
        (12, 64),
    ),
    "routed_again": (
        lambda x, n: npu.npu_moe_re_routing(x, n, tokens_dtype=297),
        (some_bytes(6, 32), torch.tensor([[1, 2], [2, 1]])),
        "MoeReRouting",
        0,
        "FLOAT4_E1M2",
        (6, 64),
    ),
    "hifloat8": (
        lambda x: npu.npu_dynamic_quant(x, dst_type=290),
        (X,),
        "DynamicQuant",
        0,
        "HIFLOAT8",
        (6, 64),
    ),
    "anti_int4": (
        lambda x, s: npu.npu_anti_quant(x, s),
        (words(6, 2), rand(16)),
        "AscendAntiQuantV2",
        "x",
        "INT4",
        (6, 16),
    ),
    "anti_hifloat8": (
        lambda x, s: npu.npu_anti_quant(x, s, src_dtype=290),
        (some_bytes(6, 16), rand(16)),
        "AscendAntiQuantV2",
        "x",
        "HIFLOAT8",
        (6, 16),
    ),
    "anti_mx": (
        lambda x, s: npu.npu_anti_mx_quant(x, s, src_type=297),
        (some_bytes(6, 32), powers(6, 1)),
        "AntiMxQuant",
        "x",
        "FLOAT4_E1M2",
        (6, 64),
    ),
    "anti_mx_scale": (
        lambda x, s: npu.npu_anti_mx_quant(x, s, src_type=296),
        (some_bytes(6, 32), powers(6, 1)),
        "AntiMxQuant",
        "mxscale",
        "FLOAT8_E8M0",
        (6, 1, 2),
    ),
    "product": (
        lambda a, b, s: npu.npu_quant_matmul(a, b, s, output_dtype=5),
        (words(5, 4), words(32, 2), rand(16)),
        "QuantBatchMatmulV3",
        "x2",
        "INT4",
        (32, 16),
    ),
    "product_left": (
        lambda a, b, s: npu.npu_quant_matmul(a, b, s, output_dtype=5),
        (words(5, 4), words(32, 2), rand(16)),
        "QuantBatchMatmulV3",
        "x1",
        "INT4",
        (5, 32),
    ),
    "product_turned": (
        lambda a, b, s: npu.npu_quant_matmul(a, b.t(), s, output_dtype=5),
        (words(5, 4), words(16, 4), rand(16)),
        "QuantBatchMatmulV3",
        "x2",
        "INT4",
        (16, 32),
    ),
    "product_in_groups": (
        lambda a, b, s: npu.npu_quant_matmul(a, b, s, output_dtype=15, group_sizes=[0, 0, 8]),
        (ints(-128, 128, 5, 32, dtype=i8), words(32, 2), rand(4, 16)),
        "QuantBatchMatmulV4",
        "x2",
        "INT4",
        (32, 16),
    ),
    "product_fp8_fp4": (
        lambda a, b, s: npu.npu_quant_matmul(a, b, s, output_dtype=15),
        (rand(5, 64).to(torch.float8_e4m3fn), some_bytes(64, 8), rand(16)),
        "QuantBatchMatmulV4",
        "x2",
        "FLOAT4_E2M1",
        (64, 16),
    ),
    "weight": (
        npu.npu_weight_quant_batchmatmul,
        (X, words(64, 2), rand(16, dtype=f16)),
        "WeightQuantBatchMatmulV2",
        "weight",
        "INT4",
        (64, 16),
    ),
    "weight_turned": (
        lambda x, w, s: npu.npu_weight_quant_batchmatmul(x, w.t(), s),
        (X, words(16, 8), rand(16, dtype=f16)),
        "WeightQuantBatchMatmulV2",
        "weight",
        "INT4",
        (16, 64),
    ),
    "weight_of_experts": (
        lambda x, w, s, g: npu.npu_grouped_matmul(
            [x], [w], antiquant_scale=[s], antiquant_offset=[s], group_list=g, group_type=0, split_item=3
        ),
        (X, words(2, 64, 2), rand(2, 16, dtype=f16), torch.tensor([2, 6])),
        "GroupedMatmul",
        "weight0",
        "INT4",
        (2, 64, 16),
    ),
    "feed_forward": (
        lambda x, a, b, s, t: npu.npu_ffn(
            x, a, b, "relu", antiquant_scale1=s, antiquant_scale2=t, antiquant_offset1=s, antiquant_offset2=t
        ),
        (X, words(64, 2), words(16, 8), rand(16, dtype=f16), rand(64, dtype=f16)),
        "FFN",
        "weight2",
        "INT4",
        (16, 64),
    ),
    "cache": (
        lambda q, k, s: npu.npu_fused_infer_attention_score(
            q, k, k, num_heads=4, num_key_value_heads=2, input_layout="BSH", antiquant_scale=s
        )[0],
        (rand(2, 1, 32, dtype=f16), words(2, 7, 2), rand(2, 16, dtype=f16)),
        "AscendAntiQuantV2",
        "x",
        "INT4",
        (2, 7, 16),
    ),
    "cast_fp4": (lambda x: npu.npu_dtype_cast(x, 296), (X,), "Cast", 0, "FLOAT4_E2M1", (6, 64)),
    "cast_from_fp4": (
        lambda x: npu.npu_dtype_cast(x, 6, 297),
        (some_bytes(6, 8),),
        "Cast",
        "x",
        "FLOAT4_E1M2",
        (6, 16),
    ),
    "cast_int4": (lambda x: npu.npu_dtype_cast(x, 285), (X * 3,), "AscendQuantV2", 0, "INT4", (6, 64)),
    "cast_from_int4": (
        lambda x: npu.npu_dtype_cast(x, 6, 285),
        (some_bytes(6, 8),),
        "AscendAntiQuantV2",
        "x",
        "INT4",
        (6, 16),
    ),
    "cast_hifloat8": (lambda x: npu.npu_dtype_cast(x, 290), (X,), "Cast", 0, "HIFLOAT8", (6, 64)),
}


def edge(graph: Graph, op_type: str, slot: str | int) -> Tensor:
    """What an op reads in a slot, or makes; where there are several ops, the first says it."""
    op = next(op for op in graph.ops if op.type == op_type)
    if isinstance(slot, int):
        return op.outputs[slot]
    (found,) = [each.tensor for each in op.slots if each.name == slot]
    assert found is not None
    return found


@pytest.mark.parametrize("name", CASES)
def test_one_element_per_value(name):
    fn, args, op_type, slot, dtype, sizes = CASES[name]
    graph, report, _, _ = converted(fn, args)
    assert not report.fallbacks
    found = edge(graph, op_type, slot)
    assert (dtypes.BY_RUNTIME[found.dtype].name, tuple(found.symsize or ())) == (dtype, sizes)


@STATIC_FIRST
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_eager(name, dynamic):
    fn, args, *_ = CASES[name]
    assert not check(fn, *args, dynamic=dynamic, rtol=1e-3, atol=1e-3).fallbacks


@pytest.mark.parametrize("name", ["product_turned", "weight_turned"])
def test_what_is_packed_along_the_inner_dim_is_taken_transposed(name):
    """No engine transposes values of four bits."""
    fn, args, op_type, *_ = CASES[name]
    graph, _, _, _ = converted(fn, args)
    op = next(op for op in graph.ops if op.type == op_type)
    assert op.attributes()["transpose_x2" if op_type == "QuantBatchMatmulV3" else "transpose_weight"] is True
    read = {tensor.op.type for each in graph.ops if each.type == "Bitcast" for tensor in each.inputs}
    assert read == {"Data"}, "the view is not made and turned back"


def test_what_was_packed_is_read_where_it_was_packed():
    def both(x):
        y, scale = npu.npu_dynamic_mx_quant(x, dst_type=296)
        return npu.npu_anti_mx_quant(y, scale, src_type=296)

    graph, _, _, _ = converted(both, (X,))
    for slot in ("x", "mxscale"):
        assert edge(graph, "AntiMxQuant", slot).op.type == "DynamicMxQuant"


# Case -> which of its outputs are powers of two
POWERS = {
    "mx": (1,),
    "mx_two_axes": (1, 3),
    "mx_tiles": (1, 2),
    "mx_two_levels": (2,),
    "mx_groups": (1,),
    "mx_swiglu": (1,),
    "mx_norm": (1,),
    "mx_added_norm": (2,),
    "routing": (),  # one number for each row
}


@pytest.mark.parametrize("name", POWERS)
def test_scales_of_blocks_are_powers_of_two_in_the_ir(name):
    """torch has them as bytes: a Bitcast is the border."""
    fn, args, op_type, *_ = CASES[name]
    graph, _, _, _ = converted(fn, args)
    verify_emitted(graph)
    op = next(op for op in graph.ops if op.type == op_type)
    scales = [tensor for tensor in op.outputs if dtypes.BY_RUNTIME[tensor.dtype].name == "FLOAT8_E8M0"]
    assert tuple(tensor.index for tensor in scales) == POWERS[name]
    readers = [reader.type for tensor in scales for reader, _ in graph.consumers()[tensor]]
    assert readers == ["Bitcast"] * len(scales)


def test_routed_rows_may_have_powers_of_two():
    def fn(x, e):
        return npu.npu_moe_init_routing_v2(x, e, expert_num=4, quant_mode=3)

    graph, _, _, _ = converted(fn, (X, routing()))
    assert edge(graph, "MoeInitRoutingV3", 3).dtype == dtypes.BY_NAME["FLOAT8_E8M0"].runtime
    assert not check(fn, X, routing()).fallbacks


def test_weights_in_words_and_what_mends_them():
    """With int4 weights a bias is for the device alone: as eager has it."""
    args = (ints(-128, 128, 5, 32, dtype=i8), words(32, 2), rand(4, 16), rand(16, dtype=bf16))
    grouped = {"output_dtype": 15, "group_sizes": [0, 0, 8]}

    def mended(a, b, s, c):
        return npu.npu_quant_matmul(a, b, s, bias=c, **grouped)

    assert torch.equal(mended(*args), npu.npu_quant_matmul(*args[:3], **grouped))
    assert not check(mended, *args).fallbacks


# The border itself


@pytest.mark.parametrize("kind", [INT4, E2M1, E1M2])
@pytest.mark.parametrize("dtype", [u8, torch.int16, i32, torch.int64, torch.float32])
def test_every_pattern_survives(kind, dtype):
    stored = torch.randint(0, 256, (3, 16), dtype=u8).view(torch.int64).view(dtype)
    values = unpack(stored, kind)
    assert values.dtype == dtypes.SMALL[kind]
    assert torch.equal(pack(values, kind, dtype).view(u8), stored.view(u8))


def test_the_first_value_is_in_the_lowest_bits():
    assert unpack(torch.tensor([0x1234567F], dtype=i32), INT4).tolist() == [-1, 7, 6, 5, 4, 3, 2, 1]
    assert unpack(torch.tensor([0x92], dtype=u8), E2M1).tolist() == [1.0, -0.5]
    patterns = torch.arange(16, dtype=u8)
    assert unpack(patterns, E1M2)[::2].float().tolist() == decode(patterns, E1M2).tolist()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("keep_dim", "sizes"), [(True, (5, 16)), (False, (5, 2, 8))])
def test_both_forms_of_bitcast(keep_dim, sizes, dynamic):
    x = words(5, 2)

    def there_and_back(x):
        values = ge.Bitcast(x, type=INT4, keep_dim=keep_dim)
        assert values.dtype == INT4
        back = ge.Bitcast(values, type=I32, keep_dim=keep_dim)
        return ge.AscendAntiQuantV2(values, ge.Const(torch.ones(1))), back

    expected = unpack(x, INT4).reshape(sizes).half()
    check_kernel(there_and_back, [expected, x], x, dynamic=dynamic)


def test_wider_and_narrower_types():
    """As torch's view does, and in the form that changes the rank."""
    x = rand(3, 4)
    check_kernel(lambda x: ge.Bitcast(x, type=ge.DataType.DT_INT16, keep_dim=True), x.view(torch.int16), x)
    check_kernel(lambda x: ge.Bitcast(x, type=ge.DataType.DT_INT16), x.view(torch.int16).reshape(3, 4, 2), x)
    check(lambda x: x.view(torch.int16), x)


def test_constants_of_four_bits():
    stored = torch.tensor([[0x21, 0xF3]], dtype=u8)
    check_kernel(
        lambda x: ge.AscendAntiQuantV2(ge.Const(stored, dtype=INT4), x),
        torch.tensor([[1.0, 2.0, 3.0, -1.0]]).half(),
        torch.ones(1),
    )


# Files


class Linear(torch.nn.Module):
    """Rows quantised on the fly, times weights of four bits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", words(64, 2))
        self.register_buffer("scale", rand(16))

    def forward(self, x):
        rows, scale = npu.npu_dynamic_quant(x, dst_type=285)
        return npu.npu_quant_matmul(rows, self.weight, self.scale, pertoken_scale=scale, output_dtype=5)


class Microscaled(torch.nn.Module):
    def forward(self, x):
        return npu.npu_dynamic_mx_quant(x, dst_type=296)


@STATIC_FIRST
@pytest.mark.parametrize(
    ("model", "op_type", "dtype"),
    [(Linear(), "QuantBatchMatmulV3", 28), (Microscaled(), "DynamicMxQuant", 39)],
    ids=["linear", "microscaled"],
)
def test_through_a_file(model, op_type, dtype, dynamic, tmp_path: Path):
    torchair.dynamo_export(X, model=model, export_path=str(tmp_path), export_name="net", dynamic=dynamic)
    (graph,) = wire.read(tmp_path / "net.air").graph
    (op,) = [op for op in graph.op if op.type == op_type]
    assert dtype in [desc.dtype for desc in (*op.input_desc, *op.output_desc)], "the number on the wire"
    loaded = torchair.load_air(tmp_path / "net.air")
    torch.testing.assert_close(loaded(X), model(X))


# All rows

FAMILIES = (
    "attention.test_flash",
    "attention.test_infer_attention",
    "dense.test_activation",
    "dense.test_matmul",
    "dense.test_norm",
    "dense.test_quant",
    "moe.test_routing",
)
UNDECLARED = {"quant_hifloat8": "QuantBatchMatmulV4 does not accept HIFLOAT8 as x1"}
"""Samples whose IR op declares no type that holds the values."""


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_every_sample_is_emitted_in_declared_types(family):
    samples = importlib.import_module(f"tests.ops.npu.{family}").ROWS
    for name, (fn, args, *_) in samples.items():
        graph, report, _, _ = converted(fn, taken(fn, args))
        verify_emitted(graph)
        whys = [reason.why for reason in report.fallbacks]
        assert all(UNDECLARED.get(name, "-") in why for why in whys), (name, whys)
        assert bool(whys) == (name in UNDECLARED) == any(op.type == "TorchOp" for op in graph.ops), name
