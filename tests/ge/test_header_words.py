"""The words of headers: numbers, strings and data types, as C++ and sloppy headers write them."""

from __future__ import annotations

from typing import Any

import pytest

from torchair.core.errors import BadPrototype
from torchair.ge.header_words import data_type, literal, string, words

LITERALS: list[tuple[str, str, Any]] = [
    ("Int", "10", 10),
    ("Int", "0x1F", 31),
    ("Int", "0XffULL", 255),
    ("Int", "010", 8),
    ("Int", "0", 0),
    ("Int", "+5L", 5),
    ("Int", "- - 5", 5),
    ("Int", "-9223372036854775808", -(2**63)),
    ("Int", "7 / 2 * 2", 6),
    ("Int", "-7 / 2", -3),
    ("Int", "7 / -2", -3),
    ("Int", "true", 1),
    ("Int", "DT_BF16", 27),
    ("Float", "1.", 1.0),
    ("Float", ".5f", 0.5),
    ("Float", "-1e-5F", -1e-5),
    ("Float", "2E+3", 2000.0),
    ("Float", "1f", 1.0),
    ("Float", "3", 3.0),
    ("Float", "1.f / 4", 0.25),
    ("Bool", "false", False),
    ("Bool", "1", True),
    ("Type", "DT_FP8_E5M2", 35),
    ("String", '""', ""),
    ("String", r'"\t\\\"\'\?"', "\t\\\"'?"),
    ("String", r'"\x41" "B" "\101\0018"', "ABA\x018"),
    ("String", r'"\xc3\xa9\u00e9\U0001F600é"', "éé\U0001f600é"),
    ("ListInt", "{1, 2,}", [1, 2]),
    ("ListInt", "{}", []),
    ("ListType", "{DT_FLOAT, DT_INT8}", [0, 2]),
    ("ListListFloat", "{{1, .5}, {}}", [[1.0, 0.5], []]),
    ("ListNamedAttrs", "{}", []),
    ("NamedAttrs", "NamedAttrs()", None),
    ("Tensor", "{}", None),
    ("Int", "", None),
]


@pytest.mark.parametrize(("kind", "text", "value"), LITERALS)
def test_literal_reads_numbers_and_strings(kind: str, text: str, value: Any) -> None:
    found = literal(words(text, "ops.h")[:-1], kind, "ops.h:1")
    assert found == value
    assert type(found) is type(value)


NO_STRINGS = [r'"\x411"', r'"\777"', r'"\x"', r'"\u12"', r'"\U00110000"', '"']


@pytest.mark.parametrize("text", NO_STRINGS)
def test_strings_that_are_none(text: str) -> None:
    with pytest.raises(BadPrototype, match=r"ops\.h:1"):
        string(words(text, "ops.h")[0])


MISSPELT = {
    "DT_FLOAT32": "FLOAT", "DT_FP32": "FLOAT", "DT_FP16": "FLOAT16", "DT_HALF": "FLOAT16",
    "DT_BFLOAT16": "BF16", "DT_FLOAT64": "DOUBLE", "DT_COMPLEXT64": "COMPLEX64", "DT_RESOURSE": "RESOURCE",
    "DT_FP8_E5M2": "FLOAT8_E5M2", "DT_FP8_E4M3FN": "FLOAT8_E4M3FN", "DT_FLOAT8_E4M3": "FLOAT8_E4M3FN",
    "DT_FLOAT_E1M2": "FLOAT4_E1M2", "DT_UNDEFINED": "UNDEFINED", "DT_INT4": "INT4",
}  # fmt: skip


@pytest.mark.parametrize("text", MISSPELT)
def test_data_type_reads_misspelled_names(text: str) -> None:
    assert data_type(words(text, "ops.h")[:-1], "ops.h:1") == MISSPELT[text]


def test_lines_are_counted_through_everything() -> None:
    text = '/* a\n b */ // c \\\n d\r\n"e" \\\n #define f \\\n g\rh'
    found = [(word.kind, word.text.split()[0], word.at) for word in words(text, "f.h")[:-1]]
    assert found == [("string", '"e"', "f.h:4"), ("directive", "#define", "f.h:5"), ("name", "h", "f.h:7")]
