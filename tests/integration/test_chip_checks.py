"""What an engine of Ascend checks before it compiles a graph: types, formats, and ops that its chip has."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchair
from tests.convert.harness import check, converted
from tests.support.compile import seen_with
from torchair import ge
from torchair.convert.base.report import Reason
from torchair.core import dtypes
from torchair.core.errors import BadGraph, BadOption, UnsupportedOp
from torchair.engine.infer import inference
from torchair.ge.attr import Layouts
from torchair.ge.files.verify import verify_emitted
from torchair.ge.graph import Graph, Op
from torchair.ge.proto.write import to_model
from torchair.ge.prototype import catalogue
from torchair.ge.schema.formats import image_slots
from torchair.ge.schema.op_dtypes import forgotten, taken

aten = torch.ops.aten
NEWEST = {"engine_config.soc": "Ascend910_95"}


def names(graph: Graph) -> list[str]:
    return [op.type for op in graph.ops]


def inputs_of(op: Op) -> list[str]:
    return [dtypes.BY_RUNTIME[tensor.dtype].name for tensor in op.inputs]


def only(graph: Graph, op_type: str) -> Op:
    (op,) = [op for op in graph.ops if op.type == op_type]
    return op


# Types


@pytest.mark.parametrize(
    ("fn", "dtype", "op_type", "wanted"),
    [
        (torch.erf, torch.bfloat16, "Erf", "FLOAT"),
        (torch.erfc, torch.bfloat16, "Erfc", "FLOAT"),
        (torch.tan, torch.bfloat16, "Tan", "FLOAT"),
        (lambda x: torch.minimum(x, x + 1), torch.int16, "Minimum", "INT32"),
        (lambda x: torch.maximum(x, x + 1), torch.uint8, "Maximum", "INT32"),
    ],
    ids=["erf", "erfc", "tan", "minimum", "maximum"],
)
def test_an_undeclared_type_is_cast_to_one_that_holds_it(
    fn: Any, dtype: torch.dtype, op_type: str, wanted: str
):
    x = torch.arange(6).reshape(2, 3).to(dtype)
    check(fn, x)
    graph, _, _, _ = converted(fn, [x])
    op = only(graph, op_type)
    assert set(inputs_of(op)) == {wanted}
    assert next(tensor.op.type for tensor in op.inputs) == "Cast"


def test_declared_types_are_left_alone() -> None:
    graph, _, _, _ = converted(torch.erf, [torch.randn(3)])
    assert "Cast" not in names(graph)


@pytest.mark.parametrize(
    ("fn", "args", "why"),
    [
        (torch.mm, (torch.randn(2, 3).double(), torch.randn(3, 2).double()), "MatMul takes no DOUBLE as x1"),
        (torch.mm, (torch.ones(2, 3).long(), torch.ones(3, 2).long()), "MatMul takes no INT64 as x1"),
        (torch.nextafter, (torch.ones(3).half(), torch.zeros(3).half()), "NextAfter takes no FLOAT16 as x1"),
    ],
    ids=["double", "int64", "of the type itself"],
)
def test_what_no_type_holds_goes_on_as_torchs_own_op(fn: Any, args: Any, why: str) -> None:
    graph, report, _, _ = converted(fn, args)
    assert names(graph).count("TorchOp") == 1
    assert why in report.fallbacks[0].why
    check(fn, *args, allow=[report.fallbacks[0].op])


def test_only_types_are_no_degradation() -> None:
    """Another reason that sounds alike stays one that is told."""
    assert Reason("aten.mm.default", "the converter declined: MatMul takes no DOUBLE as x1").is_of_type
    assert not Reason("npu.x.default", "the converter declined: FFN takes no transposed weight").is_of_type


def test_a_number_that_32_bits_do_not_hold_is_not_narrowed() -> None:
    made = Graph("sizes", inference(torch._subclasses.FakeTensorMode(), torch.device("cpu")))
    with made:
        x = ge.Const(torch.ones(2, 4))
        with pytest.raises(UnsupportedOp, match="SplitV takes no INT64 as split_dim"):
            ge.SplitV(x, [1, 3], ge.Const(1 << 40), num_split=2, outputs=2)
        ge.SplitV(x, [1, 3], ge.Const(1), num_split=2, outputs=2)
    assert inputs_of(only(made, "SplitV"))[2] == "INT32"


def test_numbers_are_of_a_type_that_is_declared() -> None:
    graph, _, _, _ = converted(lambda x: x.split([1, 2], 1), [torch.ones(2, 3).long()])
    assert inputs_of(only(graph, "SplitV"))[2] == "INT32"
    sizes = (1, 3, 3, 3), (1, 2, 5, 5), (3, 2, 3, 3)
    window = ([3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    back = aten.convolution_backward.default
    graph, _, _, _ = converted(
        lambda *given: back(*given, *window)[:2], [torch.randn(size) for size in sizes]
    )
    assert inputs_of(only(graph, "Conv2DBackpropInput"))[0] == "INT32"
    assert inputs_of(only(graph, "Conv2DBackpropFilter"))[1] == "INT32"


def test_complex_products_are_products_of_parts() -> None:
    args = [torch.randn(2, 3, dtype=torch.complex64), torch.randn(3, 4, dtype=torch.complex64)]
    check(torch.mm, *args)
    check(torch.mm, *args, dynamic=True)
    graph, _, _, _ = converted(torch.mm, args)
    assert names(graph).count("MatMul") == 4


def test_rows_of_forgotten_types() -> None:
    """Few, each for a prototype that lacks the type, each with evidence."""
    assert len(forgotten()) <= 40
    for pattern, slot, dtype, evidence in forgotten():
        ops = [name for name in catalogue() if fnmatchcase(name, pattern)]
        slots = [param for name in ops for param in catalogue()[name].inputs if fnmatchcase(param.name, slot)]
        assert any(dtype not in param.dtypes for param in slots if param.dtypes), (pattern, slot, dtype)
        assert len(evidence) > 10


def test_an_op_with_an_undeclared_type_is_found() -> None:
    graph, _, _, _ = converted(torch.erf, [torch.randn(3)])
    only(graph, "Erf").inputs[0].meta = torch.zeros(3, dtype=torch.bfloat16)
    with pytest.raises(BadGraph, match="Erf \\(Erf\\) takes no BF16 as 'x'"):
        verify_emitted(graph)


# Formats


def inferred(x: torch.Tensor) -> torch.Tensor:
    statistics = torch.zeros(3), torch.ones(3)
    return aten._native_batch_norm_legit_no_training.default(x, None, None, *statistics, 0.1, 1e-5)[0]


def trained(x: torch.Tensor) -> Any:
    return aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)


IMAGES = {
    "Conv2D": (lambda x: F.conv2d(x, torch.ones(4, 3, 2, 2)), (1, 3, 6, 6)),
    "Conv1D": (lambda x: F.conv1d(x, torch.ones(4, 3, 2)), (1, 3, 6)),
    "Conv3D": (lambda x: F.conv3d(x, torch.ones(4, 3, 2, 2, 2)), (1, 3, 4, 4, 4)),
    "Conv2DTranspose": (lambda x: F.conv_transpose2d(x, torch.ones(3, 4, 2, 2)), (1, 3, 6, 6)),
    "AvgPoolV2": (lambda x: F.avg_pool2d(x, 2), (1, 3, 6, 6)),
    "MaxPool": (lambda x: F.max_pool2d(x, 2), (3, 6, 6)),
    "BNInfer": (inferred, (2, 3)),
    "BNInfer of volumes": (inferred, (2, 3, 2, 4, 4)),
    "BatchNormV3": (trained, (2, 3, 5)),
    "Resize": (lambda x: F.interpolate(x, (4, 5), mode="bilinear"), (1, 3, 6, 6)),
    "GridSampler2D": (lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2), align_corners=False), (1, 3, 6, 6)),
    "GridSampler3D": (
        lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2, 3), align_corners=False), (1, 3, 4, 4, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_images_say_their_format(name: str) -> None:
    """On the wire, where an engine reads it; everything else says ND."""
    fn, shape = IMAGES[name]
    check(fn, torch.randn(shape))
    graph, _, _, _ = converted(fn, [torch.randn(shape)])
    found = [op for op in graph.ops if op.type in image_slots()]
    assert found, names(graph)
    written = {op.name: op for op in to_model(graph, normalised=True).graph[0].op}
    for op in found:
        wanted = "NCDHW" if "3D" in op.type else "NCHW"
        inputs, outputs = image_slots()[op.type]
        descs = [*written[op.name].input_desc, *written[op.name].output_desc]
        images = [desc for desc in descs if desc.name in {*inputs, *outputs}]
        assert {desc.layout for desc in images} == {wanted}, op
        assert {desc.layout for desc in descs if desc not in images} <= {"ND", ""}, "unfed inputs say nothing"
    plain = [op for op in graph.ops if op.type not in image_slots() and op.type not in ("Data", "NetOutput")]
    assert all("input_layout_info" not in op.attrs for op in plain)


def test_an_image_without_its_format_is_found() -> None:
    fn, shape = IMAGES["Conv2D"]
    graph, _, _, _ = converted(fn, [torch.randn(shape)])
    op = only(graph, "Conv2D")
    op.attrs["input_layout_info"] = Layouts([(0, "ND")])
    with pytest.raises(BadGraph, match="must say input_layout_info"):
        verify_emitted(graph)


def test_rows_of_images_name_slots() -> None:
    for name, (inputs, outputs) in image_slots().items():
        proto = catalogue()[name]
        assert set(inputs) <= {param.name for param in proto.inputs}, name
        assert set(outputs) <= {param.name for param in proto.outputs}, name


# Chips


def norm_gradient(x: torch.Tensor) -> Any:
    weight, bias = torch.ones(4), torch.zeros(4)
    y, mean, rstd = aten.native_batch_norm.default(x, weight, bias, None, None, True, 0.1, 1e-5)
    return aten.native_batch_norm_backward.default(
        y + 1, x, weight, None, None, mean, rstd, True, 1e-5, [True, True, True]
    )


NEW_OPS = {
    "GroupNormV2": (lambda x: F.group_norm(x, 2), "GroupNorm"),
    "ReduceStdV2": (lambda x: torch.std(x, 1, correction=2), "ReduceStd"),
    "BatchNormGradV3": (norm_gradient, "BNTrainingReduceGrad"),
}


@pytest.mark.parametrize("name", NEW_OPS)
def test_newest_chip_gets_newer_op(name: str) -> None:
    """The general form for every chip, the newer op for the newest."""
    fn, general = NEW_OPS[name]
    x = torch.randn(3, 4, 5, 6)
    for options, emitted, other in (({}, general, name), (NEWEST, name, general)):
        seen = seen_with(options, fn, x)
        assert emitted in seen.types
        assert other not in seen.types


def test_older_chips_get_the_general_form() -> None:
    seen = seen_with({"engine_config.soc": "Ascend910B"}, NEW_OPS["GroupNormV2"][0], torch.randn(3, 4, 5))
    assert "GroupNorm" in seen.types


def test_a_chip_has_a_name() -> None:
    config = torchair.CompilerConfig()
    with pytest.raises(BadOption, match="the name of a chip"):
        config.engine_config.soc = "H100"


def test_group_norm_of_halves_keeps_its_statistics() -> None:
    """The older op rounds them to the type of the data; large ones would be infinite."""
    x = (torch.randn(2, 4, 6, 6) * 300).half()
    check(lambda x: torch.native_group_norm(x, None, None, 2, 4, 36, 2, 1e-5), x, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 5), (2, 4, 3, 3, 3)])
def test_norm_gradients_of_every_rank(shape: Any, dtype: torch.dtype) -> None:
    tolerance: dict[str, Any] = {} if dtype is torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    check(lambda x: norm_gradient(x.float()), torch.randn(shape).to(dtype), **tolerance)


# Pools


def test_pools_with_unread_indices() -> None:
    seen = seen_with({}, lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(1, 2, 9, 9))
    (pool,) = seen.ops("MaxPoolWithArgmaxV1")
    assert pool.attributes()["ksize"] == [1, 3, 3, 1]
    assert pool.attributes()["pads"] == [1, 1, 1, 1]


def test_pools_whose_indices_are_read() -> None:
    fn = lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)  # noqa: E731
    assert "MaxPoolWithArgmaxV3" in seen_with({}, fn, torch.randn(1, 2, 9, 9)).types


def test_pools_whose_own_gradient_reads_the_indices() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        window = ([3, 3], [2, 2], [1, 1], [1, 1], False)
        y, indices = aten.max_pool2d_with_indices.default(x, *window)
        return aten.max_pool2d_with_indices_backward.default(y * 2, x, *window, indices)

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(1, 2, 9, 9).to(dtype)
        seen = seen_with({}, fn, x)
        assert {"MaxPoolWithArgmaxV1", "MaxPoolGradWithArgmaxV1"} <= set(seen.types)
        assert not [name for name in seen.types if name.endswith("V3")]


def test_taken_types_of_lists() -> None:
    assert "FLOAT" in taken("ConcatV2", "x11")
    assert "INT32" in taken("SplitV", "split_dim")
