"""Tokenize a C++ header with REG_OP prototypes, and parse its literals, for `header_parser.py`.

Text is read once, in one direction: comments and blanks are dropped, strings stay whole. Nothing here follows
nesting deeper than lists of lists.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torchair.core import dtypes
from torchair.core.errors import BadPrototype

MISSPELT = {
    "FLOAT32": "FLOAT", "FP32": "FLOAT", "FP16": "FLOAT16", "HALF": "FLOAT16", "BFLOAT16": "BF16",
    "FLOAT64": "DOUBLE", "COMPLEXT64": "COMPLEX64", "RESOURSE": "RESOURCE", "FP8_E5M2": "FLOAT8_E5M2",
    "FP8_E4M3FN": "FLOAT8_E4M3FN", "FLOAT8_E4M3": "FLOAT8_E4M3FN", "FLOAT_E1M2": "FLOAT4_E1M2",
}  # fmt: skip
"""Data types as some headers write them, and their names."""
SHAPES = {"UNKNOWN_SHAPE": [-1], "UNKNOWN_RANK": [-2]}
"""Defaults that have a name."""
WITHOUT_VALUE = ("Tensor", "Bytes", "NamedAttrs")
"""Attributes whose default is always empty in a header."""

_WORD = re.compile(
    r"""
      (?P<blank>\s+|\\\n|//(?:[^\\\n]|\\.)*)
    | (?P<comment>/\*)
    | (?P<directive>\#(?:[^\\\n/"]|\\.|/(?![/*])|"(?:[^"\\\n]|\\[^\n])*"?)*)
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*"?)
    | (?P<character>'(?:[^'\\\n]|\\[^\n])*'?)
    | (?P<number>\.?[0-9](?:[eE][+-]|[\w.])*)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>::|.)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]{0,3}")
_FLOAT = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFlL]?")
_ESCAPE = re.compile(
    rb"\\(?:x([0-9a-fA-F]+)|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_ESCAPED = {
    b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v",
    b"\\": b"\\", b'"': b'"', b"'": b"'", b"?": b"?",
}  # fmt: skip
_LONGEST = 40  # digits: longer numbers fit into no attribute
_INT64 = range(-(1 << 63), 1 << 63)


class Word(NamedTuple):
    """One token of a header.

    Its kind is `name`, `number`, `string`, `character`, `directive`, `mark` or, after the last one, `end`.
    """

    kind: str
    text: str
    at: str

    @property
    def shown(self) -> str:
        """Return the token as errors show it."""
        return "the end of the text" if self.kind == "end" else shortened(self.text)


class TypeNumber(int):
    """A data type, as its runtime number."""


def words(text: str, file: str) -> list[Word]:
    """Return the tokens of a header without comments, and an `end` token."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    found: list[Word] = []
    position, line, counted = 0, 1, 0
    while position < len(text):
        match = _WORD.match(text, position)
        assert match is not None and match.lastgroup is not None, "every character is part of a token"
        line += text.count("\n", counted, position)
        counted = position
        if match.lastgroup == "comment":
            end = text.find("*/", match.end())
            if end < 0:
                raise BadPrototype(
                    "a comment is not closed", at=f"{file}:{line}", got="/*", near="*/ closes it"
                )
            position = end + 2
            continue
        if match.lastgroup != "blank":
            found.append(Word(match.lastgroup, match.group(), f"{file}:{line}"))
        position = match.end()
    line += text.count("\n", counted)
    return [*found, Word("end", "", f"{file}:{line}")]


def wrong(what: str, at: str, got: Sequence[Word] | str, near: str, next: str = "") -> BadPrototype:
    """Create the error for an unexpected token; tokens know their position."""
    at = at if isinstance(got, str) or not got else got[0].at
    text = got if isinstance(got, str) else " ".join(word.shown for word in got) or "nothing"
    return BadPrototype(what, at=at, got=shortened(text), near=near, next=next)


def shortened(text: str) -> str:
    """Shorten text to one line of an error."""
    return text if len(text) <= 80 else text[:77] + "..."


def split(inside: Sequence[Word]) -> list[list[Word]]:
    """Split tokens at commas outside brackets; a trailing comma is allowed."""
    parts: list[list[Word]] = [[]]
    depth = 0
    for word in inside:
        if word.kind == "mark":
            depth += (word.text in "({[") - (word.text in ")}]")
        if word.kind == "mark" and word.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts if parts[-1] else parts[:-1]


def is_inside(given: Sequence[Word], brackets: str) -> bool:
    """Return whether these tokens are in brackets."""
    ends = [(word.kind, word.text) for word in (given[0], given[-1])] if len(given) > 1 else []
    return ends == [("mark", bracket) for bracket in brackets]


def data_type(given: Sequence[Word], at: str) -> str:
    """Return the name of a data type: `DT_FLOAT32` is FLOAT."""
    text = given[0].text if len(given) == 1 and given[0].kind == "name" else ""
    name = MISSPELT.get(text.removeprefix("DT_"), text.removeprefix("DT_"))
    if text.startswith("DT_") and name in dtypes.BY_NAME:
        return name
    known = [f"DT_{each}" for each in dtypes.BY_NAME]
    near = difflib.get_close_matches(text, known, n=3)
    raise wrong("unknown data type", at, given, ", ".join(near) or "a name such as DT_FLOAT")


def literal(given: Sequence[Word], kind: str, at: str) -> Any:
    """Parse the default of an attribute; a missing one and an empty tensor are None."""
    texts = [word.text for word in given]
    if not texts:
        return None
    if kind in WITHOUT_VALUE and texts in (["{", "}"], [kind, "(", ")"]):
        return None
    if kind.startswith("List"):
        if kind == "ListInt" and len(texts) == 1 and texts[0] in SHAPES:
            return list(SHAPES[texts[0]])
        return [literal_item(part, kind, at) for part in _items(given, kind, at)]
    value = _scalar(given, kind, at)
    fitted = _FITTING[kind](value) if kind in _FITTING else None
    if fitted is None:
        raise wrong(f"invalid default of type {kind}", at, given, EXPECTED[kind])
    return fitted


def literal_item(given: Sequence[Word], kind: str, at: str) -> Any:
    """Parse one item of a list of this type."""
    item = literal(given, kind.removeprefix("List"), at)
    if item is None:
        raise wrong(f"invalid item of a {kind}", at, given, EXPECTED[kind])
    return item


def _items(given: Sequence[Word], kind: str, at: str) -> Iterator[list[Word]]:
    if not is_inside(given, "{}"):
        raise wrong(f"invalid default of type {kind}", at, given, EXPECTED[kind])
    yield from split(given[1:-1])


def _scalar(given: Sequence[Word], kind: str, at: str) -> Any:
    first = given[0]
    if all(word.kind == "string" for word in given):
        return "".join(string(word) for word in given)
    if len(given) == 1 and first.text in ("true", "false"):
        return first.text == "true"
    if len(given) == 1 and first.kind == "name" and first.text.startswith("DT_"):
        return TypeNumber(dtypes.BY_NAME[data_type(given, at)].runtime)
    return _quotient(given, kind, at)


def _quotient(given: Sequence[Word], kind: str, at: str) -> int | float:
    """Parse a number, or a product or quotient of numbers: `1.f / 4`. Integers divide as in C++."""
    value: int | float = 1
    sign, pending, expects = 1, "*", True
    for word in given:
        if expects and word.text in ("+", "-") and word.kind == "mark":
            sign = -sign if word.text == "-" else sign
        elif expects and word.kind == "number":
            value = _combined(value, pending, sign * number(word), word)
            sign, expects = 1, False
        elif not expects and word.text in ("*", "/") and word.kind == "mark":
            pending, expects = word.text, True
        else:
            raise wrong(f"invalid default of type {kind}", at, given, EXPECTED[kind])
    if expects:
        raise wrong(f"invalid default of type {kind}", at, given, EXPECTED[kind])
    return value


def _combined(left: int | float, operator: str, right: int | float, word: Word) -> int | float:
    if operator == "/" and right == 0:
        raise wrong("division by zero in a default", word.at, [word], "a divisor other than zero")
    if operator == "*":
        result = left * right
    elif isinstance(left, int) and isinstance(right, int):
        result = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    else:
        result = left / right
    if result in _INT64 if isinstance(result, int) else math.isfinite(result):
        return result
    raise wrong("a number is too large", word.at, [word], "a number that fits into 64 bits")


def number(word: Word) -> int | float:
    """Parse a C++ number: decimal, hexadecimal, octal, or with a fraction."""
    if match := _INTEGER.fullmatch(word.text):
        digits = match.group(1)
        if len(digits) > _LONGEST:
            raise wrong("a number is too large", word.at, [word], "a number that fits into 64 bits")
        is_octal = digits[0] == "0" and digits.isdecimal()
        if is_octal and set(digits) & set("89"):
            raise wrong("invalid number", word.at, [word], "octal digits after a leading 0")
        return int(digits, 8 if is_octal else 0)
    match = _FLOAT.fullmatch(word.text)
    if match is None or not math.isfinite(value := float(match.group(1))):
        raise wrong("invalid number", word.at, [word], "10, -1, 0x1F, 1.0, 1e-5, 0.5f")
    return value


def string(word: Word) -> str:
    """Return the text of a string literal."""
    if len(word.text) < 2 or not word.text.endswith('"'):
        raise wrong("a string is not closed on its line", word.at, [word], 'a closing "')

    def unescaped(match: re.Match[bytes]) -> bytes:
        two, octal, four, eight, letter = match.groups()
        if letter in _ESCAPED:
            return _ESCAPED[letter]
        if letter is not None:
            got = match.group().decode(errors="replace")
            raise wrong("invalid escape in a string", word.at, got, r"\n, \t, \\, \x41")
        if two is not None or octal is not None:
            return bytes([int(two, 16) if two is not None else int(octal, 8)])
        return chr(int(four or eight, 16)).encode()

    try:
        return _ESCAPE.sub(unescaped, word.text[1:-1].encode()).decode()
    except (ValueError, OverflowError) as error:
        if isinstance(error, BadPrototype):
            raise
        raise wrong("a string is not valid UTF-8", word.at, [word], "Unicode characters") from error


def _int(value: Any) -> int | None:
    return int(value) if isinstance(value, int) else None


def _float(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool | TypeNumber)
    return float(value) if is_number else None


def _bool(value: Any) -> bool | None:
    is_one = not isinstance(value, TypeNumber | float) and value in (0, 1)
    return bool(value) if is_one else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _type(value: Any) -> int | None:
    return int(value) if isinstance(value, TypeNumber) else None


_FITTING = {"Int": _int, "Float": _float, "Bool": _bool, "String": _text, "Type": _type}
EXPECTED = {
    "Int": "an integer (1, -1, 0x1F) or a data type (DT_FLOAT)", "Float": "a number (1.0, 1e-5, 0.5f)",
    "Bool": "true or false", "String": '"text"', "Type": "a data type (DT_FLOAT)",
    "Tensor": "Tensor()", "Bytes": "Bytes()", "NamedAttrs": "NamedAttrs()",
    "ListInt": "{1, 2}, {}, UNKNOWN_SHAPE or UNKNOWN_RANK", "ListFloat": "{1.0, 0.5f} or {}",
    "ListBool": "{true, false} or {}", "ListString": '{"a", "b"} or {}',
    "ListType": "{DT_FLOAT, DT_INT32} or {}", "ListTensor": "{}", "ListNamedAttrs": "{}",
    "ListListInt": "{{1, 2}, {3}} or {}", "ListListFloat": "{{1.0}, {0.5f}} or {}",
}  # fmt: skip
"""The types of attributes, and the form of their defaults."""
