"""The public surface of `torchair.ge`: types, formats, specs, Const, Cast, Clone, custom_op, attributes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchair import ge
from torchair.core import dtypes
from torchair.core.errors import BadGraph
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv
from torchair.ge.graph import Graph, current_graph
from torchair.ge.proto import schema
from torchair.ge.prototype import catalogue, register_prototype
from torchair.ge.types import TensorSpec

RUNTIME = """
FLOAT 0 FLOAT16 1 INT8 2 INT32 3 UINT8 4 INT16 6 UINT16 7 UINT32 8 INT64 9 UINT64 10 DOUBLE 11 BOOL 12
STRING 13 DUAL_SUB_INT8 14 DUAL_SUB_UINT8 15 COMPLEX64 16 COMPLEX128 17 QINT8 18 QINT16 19 QINT32 20 QUINT8 21
QUINT16 22 RESOURCE 23 STRING_REF 24 DUAL 25 VARIANT 26 BF16 27 UNDEFINED 28 INT4 29 UINT1 30 INT2 31 UINT2 32
COMPLEX32 33 HIFLOAT8 34 FLOAT8_E5M2 35 FLOAT8_E4M3FN 36 FLOAT8_E8M0 37 FLOAT6_E3M2 38 FLOAT6_E2M3 39
FLOAT4_E2M1 40 FLOAT4_E1M2 41 MAX 42
"""

FORMATS = """
UNDEFINED -1 NCHW 0 NHWC 1 ND 2 NC1HWC0 3 FRACTAL_Z 4 NC1HWC0_C04 12 HWCN 16 NDHWC 27 FRACTAL_NZ 29 NCDHW 30
NDC1HWC0 32 FRACTAL_Z_3D 33 NC 35 NCL 47 FRACTAL_NZ_C0_16 50 FRACTAL_NZ_C0_2 52 FRACTAL_NZ_C0_4 53
FRACTAL_NZ_C0_8 54
"""

TORCH = {
    "float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BF16", "float64": "DOUBLE", "int8": "INT8",
    "uint8": "UINT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint16": "UINT16",
    "uint32": "UINT32", "uint64": "UINT64", "bool": "BOOL", "complex32": "COMPLEX32",
    "complex64": "COMPLEX64", "complex128": "COMPLEX128",
    "qint8": "QINT8", "quint8": "QUINT8", "qint32": "QINT32",
    "quint4x2": "INT4",
    "float8_e5m2": "FLOAT8_E5M2", "float8_e4m3fn": "FLOAT8_E4M3FN", "float8_e8m0fnu": "FLOAT8_E8M0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    """A graph being built around every test."""
    with Graph("test") as made:
        yield made


@pytest.fixture
def x() -> Any:
    return ge.Data(index=0, dtype=ge.DataType.DT_FLOAT, shape=[2, 3], node_name="x")


def pairs(text: str) -> list[tuple[str, int]]:
    words = text.split()
    return [(name, int(number)) for name, number in zip(words[::2], words[1::2], strict=True)]


# Data types and formats


def test_data_types_are_plain_ints() -> None:
    have = {name: value for name, value in vars(ge.DataType).items() if name.startswith("DT_")}
    assert have == {f"DT_{name}": number for name, number in pairs(RUNTIME)}
    assert all(type(value) is int for value in have.values())


def test_format_enum_has_all_formats() -> None:
    assert {entry.name: entry.value for entry in ge.Format} == {f"FORMAT_{n}": v for n, v in pairs(FORMATS)}


def test_the_wire_numbers_its_data_types_differently() -> None:
    on_the_wire = {name: number for number, name in enumerate(schema.ENUMS["DataType"].split())}
    assert {f"DT_{row.name}": row.wire for row in dtypes.ROWS}.items() <= on_the_wire.items()
    assert on_the_wire["DT_INT32"] == 7
    assert len(on_the_wire) == 42


@pytest.mark.parametrize("name", TORCH)
def test_torch_data_types(name: str) -> None:
    number = dict(pairs(RUNTIME))[TORCH[name]]
    assert dtypes.to_ge(getattr(torch, name)) == number
    assert dtypes.to_torch(number) == getattr(torch, name)


@pytest.mark.parametrize("name", ["HIFLOAT8", "FLOAT4_E2M1", "FLOAT4_E1M2"])
def test_types_torch_lacks_are_bytes(name: str) -> None:
    assert dtypes.to_torch(dtypes.BY_NAME[name].runtime) == torch.uint8


def test_a_torch_type_without_a_ge_type_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="quint2x4"):
        dtypes.to_ge(torch.quint2x4)


# TensorSpec and Tensor


def test_spec_of_a_tensor() -> None:
    spec = TensorSpec(torch.empty(2, 3, dtype=torch.float16))
    assert (spec.dtype, spec.rank, spec.size) == (ge.DataType.DT_FLOAT16, 2, [2, 3])


def test_spec_with_a_symbolic_size() -> None:
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.empty(4, 3), static_shapes=False)
    spec = TensorSpec(fake)
    assert spec.rank == 2
    with pytest.raises(AssertionError, match="not constant"):
        _ = spec.size


def test_spec_of_symbols() -> None:
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.empty(4), static_shapes=False)
    size = fake.shape[0]
    for symbol, dtype in ((size, "INT64"), (size * 1.5, "FLOAT"), (size == 9, "BOOL")):
        spec = TensorSpec(symbol)
        assert (spec.dtype, spec.rank, spec.size) == (dtypes.BY_NAME[dtype].runtime, 0, [])


@pytest.mark.parametrize("value", [None, 3, "text", [1]])
def test_spec_of_anything_else_is_empty(value: Any) -> None:
    spec = TensorSpec(value)
    assert (spec.dtype, spec.rank, spec.size) == (None, None, None)


def test_ge_tensor_members_need_metadata(x: Any) -> None:
    made = ge.Unpack(x, num=2, outputs=2)
    assert (made[1].index, made[1].tensor, made[1].controller) == (1, "Unpack:1", "Unpack:-1")
    assert made[1].node.name == "Unpack"
    assert made[1].dtype == ge.DataType.DT_UNDEFINED
    with pytest.raises(AssertionError, match="rank"):
        _ = made[1].rank
    made[1].meta = torch.empty(3, dtype=torch.int8)
    assert (made[1].dtype, made[1].rank, made[1].symsize) == (ge.DataType.DT_INT8, 1, (3,))


def test_a_default_graph_appears_outside_any() -> None:
    assert current_graph().name == "test"


# Const, Cast, Clone

CONSTANTS: list[tuple[Any, int | None, str, list[Any] | Any]] = [
    (1.5, None, "FLOAT", 1.5),
    (3, None, "INT64", 3),
    (True, None, "BOOL", True),
    ([], None, "INT32", []),
    ([1.5, 2.0], None, "DOUBLE", [1.5, 2.0]),
    ([1, 2], None, "INT64", [1, 2]),
    ([True, False], None, "BOOL", [True, False]),
    (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), None, "BF16", [1.0, 2.0]),
    (3, ge.DataType.DT_FLOAT16, "FLOAT16", 3.0),
    ([1.9], ge.DataType.DT_INT32, "INT32", [1]),
    (torch.tensor([1, 2]), ge.DataType.DT_INT8, "INT8", [1, 2]),
]


@pytest.mark.parametrize(("value", "dtype", "name", "holds"), CONSTANTS)
def test_const_has_runtime_dtype_and_value(value: Any, dtype: int | None, name: str, holds: Any) -> None:
    made = ge.Const(value, dtype)
    assert made.dtype == dtypes.BY_NAME[name].runtime
    assert made.op.attrs["value"].value.tolist() == holds
    assert made.op.attrs["_readable_value"] == ge.attr.Str(repr(value))


def test_const_without_a_readable_value() -> None:
    assert "_readable_value" not in ge.Const(1, readable=False).op.attrs


@pytest.mark.parametrize(
    ("value", "dtype", "exact"),
    [
        (0.9, None, 0.9),
        (-1e300, None, -1e300),
        (2**24 + 1, ge.DataType.DT_FLOAT, 2.0**24 + 1),
        (0.5, None, None),
        (math.nan, None, None),
        (math.inf, None, None),
        (True, ge.DataType.DT_FLOAT, None),
        (0.9, ge.DataType.DT_DOUBLE, None),
        (0.9, ge.DataType.DT_FLOAT16, None),
        (torch.tensor(0.9), None, None),
        ([0.9], ge.DataType.DT_FLOAT, None),
    ],
)
@pytest.mark.parametrize("readable", [True, False])
def test_digits_that_a_const_does_not_store(
    value: Any, dtype: int | None, exact: float | None, readable: bool
) -> None:
    assert ge.Const(value, dtype, readable=readable).op.attrs["value"].exact == exact


def test_constants_of_other_digits_are_not_shared() -> None:
    """Both are stored as the same 32 bits."""
    float32 = ge.DataType.DT_FLOAT
    assert ge.Const(0.1) is not ge.Const(0.1 + 1e-12)
    assert ge.Const(2**24, float32) is not ge.Const(2**24 + 1, float32)
    assert ge.Const(0.1) is ge.Const(0.1)


def test_const_of_a_graph_tensor(x: Any) -> None:
    with pytest.raises(ValueError, match="graph tensor"):
        ge.Const(x)


def test_const_of_a_type_that_torch_stores_as_bytes() -> None:
    made = ge.Const(torch.tensor([1, 2], dtype=torch.uint8), dtype=ge.DataType.DT_FLOAT4_E2M1)
    assert (made.dtype, made.desc.shape) == (ge.DataType.DT_FLOAT4_E2M1, (4,))


def test_cast_emits_dst_type(x: Any) -> None:
    made = ge.Cast(x, dst_type=ge.DataType.DT_FLOAT16)
    assert made.op.type == "Cast"
    assert made.op.attrs["dst_type"] == ge.attr.Int(1)


def test_cast_of_a_number_makes_a_const() -> None:
    assert ge.Cast(2.5, dst_type=0).op.inputs[0].op.type == "Const"


def test_clone_emits_tensor_move(x: Any) -> None:
    first = ge.Cast(x, dst_type=1)
    made = ge.Clone(x, dependencies=[first])
    assert made.op.type == "TensorMove"
    assert made.op.after == [first.op]


@pytest.mark.parametrize("arguments", [{"x": 1.0}, {"x": None}, {"dependencies": [1]}])
def test_clone_wants_graph_tensors(x: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="graph tensors"):
        ge.Clone(**{"x": x, **arguments})


# Names


def test_names_count_per_type(x: Any) -> None:
    names = [ge.Acos(x).op.name for _ in range(3)]
    assert names == ["Acos", "Acos_1", "Acos_2"]


def test_a_taken_name_is_skipped(x: Any) -> None:
    ge.Acos(x)
    ge.Asin(x, node_name="Acos_1")
    assert ge.Acos(x).op.name == "Acos_2"


@pytest.mark.parametrize("name", ["", "  ", "x"])
def test_builder_refuses_invalid_node_name(x: Any, name: str) -> None:
    with pytest.raises(AssertionError, match="blank" if not name.strip() else "taken"):
        ge.Acos(x, node_name=name)


# custom_op by prototype


def test_custom_op_accepts_positional_arguments(x: Any) -> None:
    made = ge.custom_op("BatchMatMul", x, x, True, None)
    assert made.op.attrs == {"adj_x1": ge.attr.Bool(True)}
    assert [slot.name for slot in made.op.slots] == ["x1", "x2"]


def test_positional_data_type(x: Any) -> None:
    made = ge.custom_op("Cast", x, torch.float16)
    assert made.op.attrs["dst_type"] == ge.attr.Int(ge.DataType.DT_FLOAT16)


def test_positional_ignores_the_description(x: Any) -> None:
    made = ge.custom_op("Acos", x, inputs={"nonsense": x}, outputs=["a", "b"])
    assert [slot.name for slot in made.op.slots] == ["x"]


def test_positional_optional_and_dynamic(x: Any) -> None:
    made = ge.custom_op("ConcatV2", [x, x], x, 2)
    assert [slot.name for slot in made.op.slots] == ["x0", "x1", "concat_dim"]
    mm = ge.custom_op("MatMul", x, x, None, False, False)
    assert mm.op.slots[2].desc.attrs["_is_unfed_optional"] == ge.attr.Int(1)


POSITIONAL_ERRORS: list[tuple[str, list[Any], type[Exception]]] = [
    ("NoSuchOp", ["x"], RuntimeError),
    ("Acos", ["x", "x"], IndexError),
    ("BatchMatMul", ["x"], IndexError),
    ("Acos", [1.0], TypeError),
    ("Acos", [None], TypeError),
    ("MatMul", ["x", "x", 3, False, False], TypeError),
    ("ConcatV2", ["x", "x", 1], TypeError),
    ("ConcatV2", [["x", 1], "x", 1], TypeError),
    ("Unpack", ["x", 2, 0], TypeError),  # its output is a list of unknown length
]


@pytest.mark.parametrize(("op_type", "arguments", "error"), POSITIONAL_ERRORS)
def test_custom_op_refuses_wrong_positional_arguments(
    x: Any, op_type: str, arguments: list[Any], error: type[Exception]
) -> None:
    def fill(part: Any) -> Any:
        return [fill(item) for item in part] if isinstance(part, list) else x if part == "x" else part

    with pytest.raises(error):
        ge.custom_op(op_type, *fill(arguments))


# custom_op by description


@pytest.fixture(scope="module")
def _split_like() -> None:
    if "SplitLike" not in catalogue():
        register_prototype("SplitLike(x, ref*, mask?; k: Int, tag: String = 'demo') -> head, tail*")


@pytest.mark.usefixtures("_split_like")
def test_custom_op_accepts_descriptions(x: Any) -> None:
    y = ge.Acos(x)
    head, tail = ge.custom_op(
        "SplitLike",
        inputs={"x": x, "ref": [x, y], "mask": None},
        attrs={"k": ge.attr.Int(2), "tag": ge.attr.Str("demo")},
        outputs=["head", ("tail", 2)],
    )
    op = head.op
    assert [(slot.name, slot.tensor) for slot in op.slots] == [
        ("x", x),
        ("ref0", x),
        ("ref1", y),
        ("mask", None),
    ]
    assert [tensor.desc.name for tensor in op.outputs] == ["head", "tail0", "tail1"]
    assert tail == op.outputs[1:]
    assert x.desc.name == "y", "the descriptor of an input is copied, never modified"


@pytest.mark.parametrize(
    ("outputs", "form"),
    [
        (None, "None"),
        ([], "None"),
        (["head"], "Tensor"),
        ([("tail", 2)], "list"),
        (["head", ("tail", 1)], "tuple"),
    ],
)
@pytest.mark.usefixtures("_split_like")
def test_what_a_description_returns(x: Any, outputs: Any, form: str) -> None:
    made = ge.custom_op("SplitLike", inputs={"x": x}, outputs=outputs)
    assert type(made).__name__ == {"None": "NoneType"}.get(form, form)


DESCRIBED_ERRORS: list[dict[str, Any]] = [
    {"inputs": ["x"]},
    {"inputs": {"x": 1.0}},
    {"inputs": {"x": ["x", None]}},
    {"inputs": {"x": ["x", 2]}},
    {"attrs": {"k": 3}},
    {"attrs": {"k": [1]}},
    {"outputs": "y"},
    {"outputs": {"y": 1}},
    {"outputs": [3]},
    {"outputs": [("y", "2")]},
    {"outputs": [("y", 2, 3)]},
    {"outputs": [(2, "y")]},
]


@pytest.mark.parametrize("description", DESCRIBED_ERRORS, ids=repr)
def test_custom_op_refuses_wrong_descriptions(x: Any, description: dict[str, Any]) -> None:
    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: fill(item) for key, item in part.items()}
        return [fill(item) for item in part] if isinstance(part, list) else x if part == "x" else part

    if "inputs" in description:
        description = {"inputs": fill(description["inputs"])}
    with pytest.raises(AssertionError):
        ge.custom_op("Acos", **{"inputs": {"x": x}, "outputs": ["y"], **description})


@pytest.mark.parametrize(
    ("kind", "description"),
    [
        ("input", {"inputs": {"x": "x", "y": "x"}}),
        ("attribute", {"attrs": {"k": ge.attr.Int(2)}}),
        ("output", {"outputs": ["y", "z"]}),
    ],
)
def test_names_that_a_prototype_lacks(x: Any, kind: str, description: dict[str, Any]) -> None:
    given = {"inputs": {"x": "x"}, "outputs": ["y"], **description}
    given["inputs"] = dict.fromkeys(given["inputs"], x)
    with pytest.raises(AssertionError, match=f"Acos has no {kind} '[ykz]'"):
        ge.custom_op("Acos", **given)


def test_private_attributes_need_no_prototype(x: Any) -> None:
    made = ge.custom_op("Acos", inputs={"x": x}, outputs=["y"], attrs={"_of_mine": ge.attr.Int(2)})
    assert made.op.attrs == {"_of_mine": ge.attr.Int(2)}


def test_a_bad_attribute_names_the_kinds(x: Any) -> None:
    kinds = sorted(kind.__name__ for kind in ge.attr.PUBLIC)
    assert len(kinds) == 12
    with pytest.raises(AssertionError, match=", ".join(kinds)):
        ge.custom_op("Acos", inputs={"x": x}, outputs=["y"], attrs={"k": 3})


def test_an_unregistered_op_is_an_error_in_both_styles(x: Any) -> None:
    with pytest.raises(RuntimeError, match="Acosh"):
        ge.custom_op("Acoshh", inputs={"x": x}, outputs=["y"])
    with pytest.raises(RuntimeError, match="Acosh"):
        ge.custom_op("Acoshh", x)


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("SplitLike", "SplitLike"),
        ("A(x) - y", "A(x) - y"),
        ("B(x; k) -> y", "k"),
        ("C(x??) -> y", "x?"),
        ("D(x y) -> z", "x y"),
        ("E(x; k: Flaot = 1.0) -> y", "Flaot"),
        ("F(x; k: Type = DT_INT8) -> y", "DT_INT8"),
        ("G(x; k: Float = 1.0.0) -> y", "1.0.0"),
    ],
)
def test_prototypes_that_cannot_be_read(text: str, got: str) -> None:
    with pytest.raises(BadGraph) as caught:
        register_prototype(text)
    assert got in caught.value.details["got"]
    assert caught.value.details["near"]


@pytest.mark.parametrize(
    "text", ["NamedTwice(x) -> y, y", "NamedTwice(x) -> y, y*", "NamedTwice(x, x?) -> y"]
)
def test_a_prototype_has_a_name_for_each(text: str) -> None:
    with pytest.raises(RuntimeError, match=r"names '[xy]' twice"):
        register_prototype(text)


def test_an_op_of_the_catalogue_cannot_be_replaced() -> None:
    with pytest.raises(RuntimeError, match="already"):
        register_prototype("Acos(x, y) -> z")


def test_a_prototype_reads_back_as_it_prints() -> None:
    proto = register_prototype(
        "PrintsItself(x, y?, z*; k: Int, f: Float = 1.5, l: ListInt = [1, 2]) -> a, b*"
    )
    assert register_prototype(str(proto)) == proto


# Builders


def test_parameters_with_python_names(x: Any) -> None:
    made = ge.Uniform(x, from_changed_as_is_python_key=1.0)
    assert made.op.attrs["from"] == ge.attr.Float(1.0)
    gather = ge.GatherD(x, 1, x, dim_changed_as_duplicate_with_input=1)
    assert gather.op.attrs["dim"] == ge.attr.Int(1)


def test_a_data_without_a_shape_has_unknown_rank() -> None:
    made = ge.Data(index=0)
    assert made.desc.shape == (-2,)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: ge.Acos(x, axis=1), ValueError, "it has none"),
        (lambda x: ge.Acos(), TypeError, "missing"),
        (lambda x: ge.BatchMatMul(x, x, adj_x1="yes"), ValueError, "Bool"),
        (lambda x: ge.Pack([x]), ValueError, "'N'"),
        (lambda x: ge.Pack(x, N=1), TypeError, "list of tensors"),
        (lambda x: ge.Acos(object()), TypeError, "cannot be made a tensor"),
        (lambda x: ge.Nothing(x), AttributeError, "Nothing"),
    ],
)
def test_builders_refuse_invalid_input(x: Any, call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call(x)


def test_literals_take_the_type_of_their_neighbours(x: Any) -> None:
    half = ge.Data(index=1, dtype=ge.DataType.DT_FLOAT16, shape=[2], node_name="half")
    assert ge.Add(half, 1.0).op.inputs[1].dtype == ge.DataType.DT_FLOAT16
    assert ge.Add(half, 1).op.inputs[1].dtype == ge.DataType.DT_INT64
    with pytest.raises(AssertionError, match="could take any"):
        ge.AddN([x, half, 1.0], N=3)


# Attributes

VALUES: list[tuple[str, Any]] = [
    ("Int", -3),
    ("Float", 0.1),
    ("Bool", False),
    ("Str", "Ω"),
    ("DataType", 27),
    ("ListInt", [1, -2]),
    ("ListFloat", [0.1, 1e-7]),
    ("ListBool", [True, False]),
    ("ListStr", ["a", ""]),
    ("ListDataType", [0, 9]),
    ("ListListInt", [[1], [], [2, 3]]),
    ("ListListFloat", [[0.1], []]),
]
EMPTY = [(name, []) for name, value in VALUES if isinstance(value, list)]


@pytest.mark.parametrize(("name", "value"), VALUES + EMPTY)
def test_attribute_kinds_check_and_hash(name: str, value: Any) -> None:
    kind = getattr(ge.attr, name)
    made = kind(value)
    assert made.value == value
    assert repr(made) == f"ge.attr.{name}({value!r})"
    assert made == kind(value)
    assert hash(made) == hash(kind(value))
    assert kind(made) is made
    with pytest.raises(AssertionError):
        kind(None)


def test_attributes_of_other_kinds() -> None:
    assert ge.attr.Int(1) != ge.attr.DataType(1)
    assert ge.attr.Int(1) != ge.attr.Int(2)
    assert ge.attr.ListInt([]) != ge.attr.ListStr([])
    with pytest.raises(AssertionError, match="Float"):
        ge.attr.Float(ge.attr.Int(1))


@pytest.mark.parametrize(("name", "value"), VALUES + EMPTY)
def test_attributes_on_the_wire(name: str, value: Any) -> None:
    written = schema.attr_def()
    kind = getattr(ge.attr, name)
    kind(value).merge_to(written)
    assert kind.get(written) == value
    assert kind(value).get(written) == value
    for other, _ in VALUES:
        if other != name and value != []:
            assert getattr(ge.attr, other).get(written) is None


def test_attribute_merge_replaces_old_kind() -> None:
    written = schema.attr_def()
    ge.attr.ListInt([1]).merge_to(written)
    ge.attr.ListInt([2]).merge_to(written)
    assert ge.attr.ListInt.get(written) == [2]
    ge.attr.Str("x").merge_to(written)
    assert ge.attr.ListInt.get(written) is None
    assert written.s == b"x"


@pytest.mark.parametrize("tag", [0, 1])
def test_string_lists_of_either_tag_are_read(tag: int) -> None:
    written = schema.attr_def()
    written.list.s.append(b"a")
    written.list.val_type = tag
    assert ge.attr.ListStr.get(written) == ["a"]


@pytest.mark.parametrize(
    ("name", "tag"), [("ListInt", 2), ("ListFloat", 3), ("ListBool", 4), ("ListStr", 0), ("ListDataType", 10)]
)
def test_list_tags_as_written(name: str, tag: int) -> None:
    written = schema.attr_def()
    getattr(ge.attr, name)([]).merge_to(written)
    assert written.WhichOneof("value") == "list"
    assert written.list.val_type == tag
