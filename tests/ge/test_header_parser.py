"""Headers with REG_OP: what is read from them, what is said where they cannot be read, and that any text at
all is read or refused.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ge.prototypes import prototypes
from torchair import ge
from torchair.core.errors import BadGraph, BadPrototype
from torchair.core.registries.user_registrations import EXTENSIONS
from torchair.ge.header_module_writer import reg_op_text
from torchair.ge.header_parser import TYPE_SETS, read_reg_op, register_reg_op
from torchair.ge.prototype import TABLES, AttrParam, Param, Prototype, catalogue

HEADER = r"""
#ifndef OPS_H  // REG_OP(NotMe)
#define OPS_H "/* no comment"
#define REG_OP(x) \
    Class(x)
namespace ge {
/* REG_OP(NorMe) .INPUT(x, "T") */
/**
 * @brief Splits, it's said.
 */
REG_OP ( SplitMine )
    . DATATYPE ( T , TensorType ( { DT_FLOAT , DT_FP16 /* half */ , DT_BFLOAT16 } ) )
    .INPUT(x, "T")  // the "data
    .OPTIONAL_INPUT(bias, TensorType::RealNumbertype())
    .DYNAMIC_INPUT(
        rest,
        TensorType{DT_INT32, DT_INT32,}
    )
    .INPUT(axis, {DT_INT64}).INPUT(mask, IndexNumberType())
    .INPUT(flag, TensorType(DT_BOOL))
    .OUTPUT(y, "T")
    .DYNAMIC_OUTPUT(parts, Promote({"T"}))
    .REQUIRED_ATTR(k, ListInt)
    .ATTR(number, Int, -0x10)
    .ATTR(type_number, Int, DT_INT64)
    .ATTR(alpha, Float, 1e-5f)
    .ATTR(whole, Float, 1)
    .ATTR(flag_too, Bool, true)
    .ATTR(text, String, "a, (b} // \"c\" /*" "\x41\101\n")
    .ATTR(type, Type, DT_FLOAT32)
    .ATTR(pads, ListInt, { 1 , -2, 0 })
    .ATTR(scales, ListFloat, {1.f / 4, 2})
    .ATTR(flags, ListBool, {false, true})
    .ATTR(names, ListString, {"a,b", ""})
    .ATTR(types, ListType, {DT_FLOAT, DT_RESOURSE})
    .ATTR(rows, ListListInt, {{1}, {}, {2, 3}})
    .ATTR(numbers, ListListFloat, {})
    .ATTR(shape, ListInt, UNKNOWN_SHAPE)
    .ATTR(rank, ListInt, UNKNOWN_RANK)
    .ATTR(value, Tensor, Tensor())
    .ATTR(nothing, Int)
    .ATTR(empty, String, )
    .GRAPH(then_branch)
    .DYNAMIC_GRAPH(branches)
    .INFER_SHAPE_AND_TYPE()
    .OTHER_CLAUSE(a(b, {c}), "d)", 'e')
    .OP_END_FACTORY_REG(SplitMine)
}  // namespace ge
#endif
"""
SPLIT = Prototype(
    "SplitMine",
    (
        Param("x", "required", ("FLOAT", "FLOAT16", "BF16"), "T"),
        Param("bias", "optional", tuple(TYPE_SETS["RealNumberType"].split())),
        Param("rest", "dynamic", ("INT32",)),
        Param("axis", "required", ("INT64",)),
        Param("mask", "required", ("INT32", "INT64")),
        Param("flag", "required", ("BOOL",)),
    ),
    (
        Param("y", "required", ("FLOAT", "FLOAT16", "BF16"), "T"),
        Param("parts", "dynamic", promote=("T",)),
    ),
    (
        AttrParam("k", "ListInt", True),
        AttrParam("number", "Int", False, -16),
        AttrParam("type_number", "Int", False, 9),
        AttrParam("alpha", "Float", False, 1e-5),
        AttrParam("whole", "Float", False, 1.0),
        AttrParam("flag_too", "Bool", False, True),
        AttrParam("text", "String", False, 'a, (b} // "c" /*AA\n'),
        AttrParam("type", "Type", False, 0),
        AttrParam("pads", "ListInt", False, [1, -2, 0]),
        AttrParam("scales", "ListFloat", False, [0.25, 2.0]),
        AttrParam("flags", "ListBool", False, [False, True]),
        AttrParam("names", "ListString", False, ["a,b", ""]),
        AttrParam("types", "ListType", False, [0, 23]),
        AttrParam("rows", "ListListInt", False, [[1], [], [2, 3]]),
        AttrParam("numbers", "ListListFloat", False, []),
        AttrParam("shape", "ListInt", False, [-1]),
        AttrParam("rank", "ListInt", False, [-2]),
        AttrParam("value", "Tensor", False),
        AttrParam("nothing", "Int", False),
        AttrParam("empty", "String", False),
    ),
    (Param("then_branch", "required"), Param("branches", "dynamic")),
)


def read(text: str) -> list[Prototype]:
    return [each.proto for each in read_reg_op(text, "ops.h")]


def test_read_reg_op_reads_a_header() -> None:
    (found,) = read_reg_op(HEADER, "ops.h")
    assert found.proto == SPLIT
    assert found.at == "ops.h:11"
    assert type(found.proto.attr_by_name["whole"].default) is float
    assert type(found.proto.attr_by_name["type_number"].default) is int
    assert read(HEADER.replace("\n", "\r\n")) == [SPLIT]


def test_what_a_header_may_have_around_its_ops() -> None:
    for text in ("", "REG_OP", "REG_OP;", '"REG_OP(X)"', "#if REG_OP(X)", "// REG_OP(X) \\\n REG_OP(X)"):
        assert read(text) == []
    twice = op("A", ".INPUT(x, ALL())") + op("B") + op("A")
    assert read(twice) == [Prototype("B", (), (), ()), Prototype("A", (), (), ())]


@pytest.mark.parametrize("name", TYPE_SETS)
def test_type_sets_in_any_case(name: str) -> None:
    for spelled in (name, name.upper(), name.lower()):
        for kind in (f"TensorType::{spelled}()", f"{spelled}()", f"TensorType :: {spelled} ( )"):
            (proto,) = read(f"REG_OP(A).INPUT(x, {kind}).OP_END_FACTORY_REG(A)")
            assert proto.inputs[0].dtypes == tuple(TYPE_SETS[name].split())


def test_the_members_of_type_sets() -> None:
    sizes = [23, 5, 16, 20, 18, 12, 3, 8, 4, 4, 3, 2, 7, 3]
    assert [len(set(members.split())) for members in TYPE_SETS.values()] == sizes
    assert TYPE_SETS["NumberType"].split()[9:12] == ["QINT32", "QINT8", "QUINT8"]


OP = "REG_OP(A)\n{}\n.OP_END_FACTORY_REG(A)"


def op(name: str, *clauses: str) -> str:
    return "\n".join((f"REG_OP({name})", *clauses, f".OP_END_FACTORY_REG({name})\n"))


# The text, the line, and parts of what was found and expected.
FAULTS: list[tuple[str, int, list[str]]] = [
    ("/* never\nclosed", 1, ["comment"]),
    ("\nREG_OP(", 2, ["not closed", "end of the text"]),
    ("REG_OP()", 1, ["REG_OP(Name)"]),
    ("REG_OP(A, B)", 1, ["B", "REG_OP(Name)"]),
    ("REG_OP(1)", 1, ["1", "REG_OP(Name)"]),
    ("REG_OP(A)\n.INPUT(x, ALL())\n", 3, ["REG_OP(A) of ops.h:1", "the end", ".OP_END_FACTORY_REG(A)"]),
    ("REG_OP(A);", 1, ["not finished", ";", ".INPUT(x"]),
    ("REG_OP(A)\nINPUT(x, ALL())", 2, ["not finished", "INPUT"]),
    ("REG_OP(A)\n.5", 2, [".5"]),
    ("REG_OP(A)\n#if X\n.INPUT(x, ALL())\n#endif", 2, ["#if X", "conditions"]),
    ("REG_OP(A)\n.OP_END_FACTORY_REG(B)", 2, ["another op", "B", ".OP_END_FACTORY_REG(A)"]),
    ("REG_OP(A)\n.OP_END_FACTORY_REG", 2, ["nothing", ".OP_END_FACTORY_REG(A)"]),
    ("REG_OP(A)\n.INPUT(x, {\nREG_OP(B)", 2, ["{ is not closed", "REG_OP"]),
    (OP.format(".INPUT(x, {DT_FLOAT)"), 2, ["do not match", ")", "the { of ops.h:2"]),
    (OP.format(".INPUT(x)"), 2, ["takes 2 arguments", "1"]),
    (OP.format(".INPUT(x, ALL(), 1)"), 2, ["takes 2 arguments", "3"]),
    (OP.format(".INPUT"), 2, ["takes 2 arguments", "0"]),
    (OP.format(".INPUT(x y, ALL())"), 2, ["needs a name", "x y"]),
    (OP.format(".INPUT(x, ALL())\n.OPTIONAL_INPUT(x, ALL())"), 3, ["the name x is used twice"]),
    (OP.format(".ATTR(k, Int, 1).ATTR(k, Int, 1)"), 2, ["the name k is used twice"]),
    (OP.format(".INPUT(x,\nTensorType({DT_FLOAT,\nDT_FLOT16}))"), 4, ["DT_FLOT16", "DT_FLOAT16"]),
    (OP.format(".INPUT(x, TensorType({DT_FLOAT DT_INT8}))"), 2, ["DT_FLOAT DT_INT8"]),
    (OP.format(".INPUT(x, TensorType(DT_FLOAT, DT_INT8))"), 2, ["DT_FLOAT , DT_INT8"]),
    (OP.format(".INPUT(x, TensorType::({DT_FLOAT}))"), 2, ["TensorType::ALL()"]),
    (OP.format(".INPUT(x, DT_FLOAT)"), 2, ["DT_FLOAT", "TensorType({DT_FLOAT})"]),
    (OP.format(".INPUT(x, TensorType)"), 2, ["TensorType::ALL()"]),
    (OP.format(".INPUT(x, RealNumbers())"), 2, ["RealNumbers", "RealNumberType"]),
    (OP.format('.INPUT(x, "T")'), 2, ['"T"', "DATATYPE(T"]),
    (OP.format('.DATATYPE(T, ALL()).DATATYPE("T", ALL())'), 2, ["twice"]),
    (OP.format('.DATATYPE("a b", ALL())'), 2, ["a b"]),
    (OP.format('.DATATYPE(T, ALL()).OUTPUT(x, Promote({"T"}))'), 2, ["no input has the type T"]),
    (OP.format('.OUTPUT(x, Promote("T"))'), 2, ["Promote"]),
    (OP.format(".ATTR(k, Integer, 1)"), 2, ["Integer", "Int"]),
    (OP.format(".ATTR(k, Int, 1.5)"), 2, ["1.5", "integer"]),
    (OP.format(".ATTR(k, Int, 9223372036854775808)"), 2, ["too large"]),
    (OP.format(f".ATTR(k, Int, {'9' * 5000})"), 2, ["too large"]),
    (OP.format(".ATTR(k, Int, 4294967296 * 4294967296)"), 2, ["too large"]),
    (OP.format(".ATTR(k, Int, 08)"), 2, ["08", "octal"]),
    (OP.format(".ATTR(k, Int, 12ab)"), 2, ["12ab"]),
    (OP.format(".ATTR(k, Int, 1 / 0)"), 2, ["zero"]),
    (OP.format(".ATTR(k, Int, kMax)"), 2, ["kMax", "integer"]),
    (OP.format(".ATTR(k, Int, -)"), 2, ["-", "integer"]),
    (OP.format(".ATTR(k, Float, 1e999)"), 2, ["1e999"]),
    (OP.format(".ATTR(k, Float, DT_FLOAT)"), 2, ["DT_FLOAT", "number"]),
    (OP.format(".ATTR(k, Bool, 2)"), 2, ["2", "true or false"]),
    (OP.format(".ATTR(k, String, 'a')"), 2, ["'a'", '"text"']),
    (OP.format('.ATTR(k, String, "a\n)'), 2, ["is not closed", '"a']),
    (OP.format(r'.ATTR(k, String, "\q")'), 2, ["escape", r"\q"]),
    (OP.format(r'.ATTR(k, String, "\xff")'), 2, ["UTF-8"]),
    (OP.format(r'.ATTR(k, String, "\ud800")'), 2, ["UTF-8"]),
    (OP.format(".ATTR(k, Type, 1)"), 2, ["1", "DT_FLOAT"]),
    (OP.format(".ATTR(k, ListInt, 1)"), 2, ["1", "{1, 2}"]),
    (OP.format(".ATTR(k, ListInt, {1,,2})"), 2, ["nothing", "{1, 2}"]),
    (OP.format(".ATTR(k, ListInt, {{1}})"), 2, ["{ 1 }", "integer"]),
    (OP.format(".ATTR(k, ListListInt, {1})"), 2, ["1", "{1, 2}"]),
    (OP.format(".ATTR(k, Tensor, 1)"), 2, ["1", "Tensor()"]),
    (OP.format(".ATTR(k, ListTensor, {Tensor()})"), 2, ["Tensor ( )", "{}"]),
]


@pytest.mark.parametrize(("text", "line", "parts"), FAULTS, ids=[repr(fault[0])[:60] for fault in FAULTS])
def test_errors_say_where_and_what(text: str, line: int, parts: list[str]) -> None:
    with pytest.raises(BadPrototype) as caught:
        read(text)
    details = caught.value.details
    assert details["at"] == f"ops.h:{line}"
    assert details["got"]
    assert details["near"]
    assert len(str(caught.value)) < 600
    for part in parts:
        assert part in str(caught.value)


# Any text


def is_read_or_refused(text: str) -> None:
    try:
        found = read(text)
    except BadPrototype as error:
        assert error.details["at"].startswith("ops.h:")  # noqa: PT017 - either way is right
    else:
        assert all(isinstance(proto, Prototype) for proto in found)


PIECES = (
    *"(){}[].,;:\"'\\/*#\n -", "//", "/*", "*/", "::", "REG_OP", "REG_OP(A)", ".OP_END_FACTORY_REG(A)",
    ".INPUT(x, ", ".ATTR(k, Int, ", ".ATTR(k, ListListInt, {{", '.INPUT(x, "T")', "TensorType",
    "TensorType(", "TensorType::", "ALL()", "Promote({", "DT_FLOAT", "{DT_INT32}", '"T"', ".DATATYPE(T, ",
    "1", "0x", "1e", "1.f", "é", "\x00", "\r", "true", "Tensor()",
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join)))
@settings(max_examples=400, deadline=None)
def test_any_text(text: str) -> None:
    is_read_or_refused(text)


def mutated(seed: int) -> str:
    """The header with a few characters lost, doubled, moved or replaced."""
    draws = random.Random(seed)
    text = list(HEADER)
    for _ in range(draws.randint(1, 4)):
        place, length = draws.randrange(len(text)), draws.choice((1, 1, 5, 40))
        new = draws.choice(("", draws.choice(PIECES), "".join(text[place : place + length]) * 2))
        text[place : place + length] = new
        text = text or list(HEADER)
    return "".join(text)


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_mutated_headers(seed: int) -> None:
    is_read_or_refused(mutated(seed))


@pytest.mark.full
def test_many_mutated_headers() -> None:
    for seed in range(10_000):
        is_read_or_refused(mutated(seed))


@pytest.mark.parametrize("piece", [piece for piece in PIECES if piece != "\x00"], ids=repr)
@pytest.mark.parametrize(
    "begin", ["", "REG_OP(A)", 'REG_OP(A).ATTR(k, String, "', "REG_OP(A).ATTR(k, Float, "]
)
def test_long_texts_take_no_long_time(begin: str, piece: str) -> None:
    started = time.thread_time()
    is_read_or_refused(begin + piece * 3_000)
    assert time.thread_time() - started < 1


def test_an_op_may_have_many_clauses() -> None:
    clauses = [f".INPUT(x{i}, {{DT_BOOL}}).ATTR(k{i}, Int, 1).OUTPUT(y{i}, ALL())" for i in range(4_000)]
    started = time.thread_time()
    (proto,) = read(op("A", *clauses))
    assert time.thread_time() - started < 3
    assert len(proto.inputs) == len(proto.attrs) == len(proto.outputs) == 4_000


# Round trips


@given(prototypes())
@settings(max_examples=60, deadline=None)
def test_a_prototype_as_text_and_back(proto: Prototype) -> None:
    text = reg_op_text(proto)
    (back,) = read(text)
    assert back == proto
    assert repr(back) == repr(proto), "true is not 1, and -0.0 is not 0.0"


def test_the_catalogue_as_text_and_back() -> None:
    every = [catalogue()[name] for name in _own_rows()][::4]
    assert len(every) > 400
    assert read("\n\n".join(map(reg_op_text, every))) == every


@pytest.mark.full
def test_the_whole_catalogue_as_text_and_back() -> None:
    every = [catalogue()[name] for name in _own_rows()]
    assert len(every) > 1760
    assert read("\n\n".join(map(reg_op_text, every))) == every


def _own_rows() -> list[str]:
    """Without what other tests have declared."""
    folder = Path(ge.__file__).parent / "opdefs"
    return [name for table in TABLES for name in json.loads((folder / table).read_text())]


# Registration


def test_registered_ops_are_known() -> None:
    text = op("RegOpKnown", ".INPUT(x, {DT_FLOAT})", ".ATTR(k, Int, 3)", ".OUTPUT(y, {DT_FLOAT})")
    (proto,) = register_reg_op(text)
    assert catalogue()["RegOpKnown"] is proto
    assert "prototype RegOpKnown" in EXTENSIONS, "caches ask for it"
    assert ge.register_reg_op(text) == (proto,), "a second time nothing happens"
    changed = text.replace("3", "4")
    with pytest.raises(BadGraph, match="the IR op 'RegOpKnown' already exists") as caught:
        register_reg_op(changed, "mine.h")
    assert caught.value.details["at"] == "mine.h:1"
    assert "k: Int = 4" in caught.value.details["got"]
    assert "k: Int = 3" in caught.value.details["near"]


def test_of_a_text_with_a_fault_nothing_is_registered() -> None:
    good = op("RegOpGood")
    with pytest.raises(BadPrototype):
        register_reg_op(good + "REG_OP(B)")
    with pytest.raises(BadGraph, match="Acos"):
        register_reg_op(good + op("Acos"))
    assert "RegOpGood" not in catalogue()


def test_prototypes_that_differ_in_types_say_in_which() -> None:
    register_reg_op(op("RegOpTyped", ".INPUT(x, {DT_FLOAT})"))
    with pytest.raises(BadGraph) as caught:
        register_reg_op(op("RegOpTyped", ".INPUT(x, {DT_INT8})"))
    assert "x: INT8, not FLOAT" in caught.value.details["near"]


def test_an_op_of_the_catalogue_may_be_declared_as_it_is() -> None:
    (proto,) = register_reg_op(reg_op_text(catalogue()["Acosh"]))
    assert proto == catalogue()["Acosh"]
    assert "prototype Acosh" not in EXTENSIONS
