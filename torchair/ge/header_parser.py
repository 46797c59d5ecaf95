"""Parse REG_OP prototypes in C++ headers into catalogue entries.

    REG_OP(MyOp)
        .INPUT(x, TensorType({DT_FLOAT, DT_FLOAT16}))
        .ATTR(scale, Float, 1.0)
        .OUTPUT(y, TensorType({DT_FLOAT, DT_FLOAT16}))
        .OP_END_FACTORY_REG(MyOp)

Text outside such declarations is skipped. `header_words.py` has the tokens; `header_module_writer.py` writes
prototypes as headers and as Python.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torchair.ge.header_words import (
    EXPECTED,
    Word,
    data_type,
    is_inside,
    literal,
    shortened,
    split,
    string,
    words,
    wrong,
)
from torchair.ge.prototype import AttrParam, Param, Prototype, register_all

BEGIN, END = "REG_OP", "OP_END_FACTORY_REG"
_REAL = "DOUBLE FLOAT FLOAT16 INT16 INT32 INT64 INT8"
_COMPLEX = "COMPLEX128 COMPLEX64"
_UNSIGNED = "UINT16 UINT32 UINT64 UINT8"
_QUANTISED = "QINT16 QINT32 QINT8 QUINT16 QUINT8"
_NEWER = "BF16 COMPLEX32"
TYPE_SETS = {
    "ALL": f"BOOL {_COMPLEX} {_REAL} {_QUANTISED} RESOURCE STRING {_UNSIGNED} {_NEWER}",
    "QuantifiedType": _QUANTISED,
    "OrdinaryType": f"BOOL {_COMPLEX} {_REAL} {_UNSIGNED} {_NEWER}",
    "BasicType": f"{_COMPLEX} {_REAL} {_QUANTISED} {_UNSIGNED} {_NEWER}",
    "NumberType": f"{_COMPLEX} {_REAL} QINT32 QINT8 QUINT8 {_UNSIGNED} {_NEWER}",
    "RealNumberType": f"{_REAL} {_UNSIGNED} BF16",
    "ComplexDataType": f"{_COMPLEX} COMPLEX32",
    "IntegerDataType": f"INT16 INT32 INT64 INT8 {_UNSIGNED}",
    "SignedDataType": "INT16 INT32 INT64 INT8",
    "UnsignedDataType": _UNSIGNED,
    "FloatingDataType": "DOUBLE FLOAT FLOAT16",
    "IndexNumberType": "INT32 INT64",
    "UnaryDataType": f"{_COMPLEX} DOUBLE FLOAT FLOAT16 {_NEWER}",
    "FLOAT": "FLOAT FLOAT16 BF16",
}
"""`TensorType::NAME()`, and its members in order."""
_SETS = {name.lower(): tuple(members.split()) for name, members in TYPE_SETS.items()}
_CLOSES = {")": "(", "}": "{", "]": "["}
_TYPE = 'TensorType({DT_FLOAT}), TensorType::ALL(), {DT_FLOAT}, ALL(), "T" or Promote({"T1", "T2"})'


@dataclass(frozen=True)
class Declared:
    """A prototype, and the file and line of its REG_OP."""

    proto: Prototype
    at: str


class Clause(NamedTuple):
    """One clause of an op: `.NAME(argument, …)`."""

    name: str
    arguments: list[list[Word]]
    at: str


@dataclass
class _Draft:
    """Collect the clauses of one op by name; a slot has its kind and the clause with its type."""

    inputs: dict[str, tuple[str, Clause]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, Clause]] = field(default_factory=dict)
    attrs: dict[str, AttrParam] = field(default_factory=dict)
    graphs: dict[str, Param] = field(default_factory=dict)
    symbols: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_reg_op(text: str, file: str = "<text>") -> list[Declared]:
    """Return the prototypes that a header declares, in order; the last declaration of an op wins."""
    given = words(text, file)
    found: dict[str, Declared] = {}
    position = 0
    while position < len(given) - 1:
        word, follower = given[position : position + 2]
        if word.kind == "name" and word.text == BEGIN and follower.text == "(":
            proto, position = _op(given, position)
            found.pop(proto.name, None)
            found[proto.name] = Declared(proto, word.at)
        else:
            position += 1
    return list(found.values())


def register_reg_op(text: str, file: str = "<text>") -> tuple[Prototype, ...]:
    """Declare custom IR ops with the text of a C++ header: REG_OP(…) … .OP_END_FACTORY_REG(…).

    An op that is already declared with the same prototype stays. If one is declared with another prototype,
    nothing is declared: a process keeps the prototypes that its graphs were built with.

    Args:
        text: Content of the header; text outside REG_OP declarations is skipped.
        file: Name of the file in error messages.

    Returns:
        The prototypes, in order.

    Raises:
        BadPrototype: The text cannot be parsed.
        BadGraph: An op exists with another prototype.

    Example:
        torchair.ge.register_reg_op(Path("my_ops.h").read_text(), "my_ops.h")
    """
    declared = read_reg_op(text, file)
    register_all([(each.proto, each.at) for each in declared])
    return tuple(each.proto for each in declared)


def _op(given: Sequence[Word], position: int) -> tuple[Prototype, int]:
    """Parse the op whose REG_OP is at this position; return it and the next position."""
    begin = given[position]
    arguments, position = _arguments(given, position + 1)
    name = _name(Clause(BEGIN, arguments, begin.at), arguments, "REG_OP(Name)")
    if len(arguments) != 1:
        raise wrong("REG_OP takes the name of an op", begin.at, arguments[1], "REG_OP(Name)")
    draft = _Draft()
    while True:
        clause, position = _clause(given, position, name, begin.at)
        if clause.name == END:
            if _name(clause, clause.arguments, f".{END}({name})") != name:
                raise wrong(
                    f"the declaration of {name} ends with the name of another op",
                    clause.at,
                    clause.arguments[0],
                    f".{END}({name})",
                )
            return _prototype(name, draft), position
        if clause.name in _CLAUSES:
            takes, read = _CLAUSES[clause.name]
            if len(clause.arguments) not in takes:
                what = f"{name}: .{clause.name} takes {takes[-1]} arguments"
                raise wrong(what, clause.at, str(len(clause.arguments)), _FORMS[clause.name])
            read(draft, clause)


def _clause(given: Sequence[Word], position: int, op: str, begun: str) -> tuple[Clause, int]:
    dot, name = given[position], given[min(position + 1, len(given) - 1)]
    if dot.text != "." or dot.kind != "mark" or name.kind != "name":
        got = name if dot.text == "." else dot
        next = (
            ("remove preprocessor conditions from the prototype: they are not evaluated")
            if got.kind == "directive"
            else ""
        )
        near = f"a clause such as .INPUT(x, …), or .{END}({op})"
        raise wrong(f"REG_OP({op}) of {begun} is not finished", got.at, [got], near, next)
    if given[position + 2].text != "(":
        return Clause(name.text, [], name.at), position + 2
    arguments, position = _arguments(given, position + 2)
    return Clause(name.text, arguments, name.at), position


def _arguments(given: Sequence[Word], position: int) -> tuple[list[list[Word]], int]:
    """Parse the arguments in the parentheses that open here; return them and the next position."""
    start, opened = position, [given[position]]
    while opened:
        position += 1
        word = given[position]
        if word.kind in ("end", "directive") or (word.kind, word.text) == ("name", BEGIN):
            raise wrong(f"{opened[-1].text} is not closed", opened[-1].at, word.shown, "its counterpart")
        if word.kind == "string":
            string(word)  # raises if the string is not terminated
        elif word.kind == "mark" and word.text in "({[":
            opened.append(word)
        elif word.kind == "mark" and word.text in _CLOSES:
            if opened[-1].text != _CLOSES[word.text]:
                near = f"what closes the {opened[-1].text} of {opened[-1].at}"
                raise wrong("brackets do not match", word.at, [word], near)
            opened.pop()
    return split(given[start + 1 : position]), position + 1


def _name(clause: Clause, arguments: Sequence[Sequence[Word]], near: str) -> str:
    """Return the first argument, which is a name."""
    first = arguments[0] if arguments else []
    if len(first) != 1 or first[0].kind != "name":
        raise wrong(f"{clause.name} needs a name as its first argument", clause.at, first, near)
    return first[0].text


def _new_name(clause: Clause, taken: Container[str]) -> str:
    name = _name(clause, clause.arguments, _FORMS[clause.name])
    if name in taken:
        raise wrong(f"the name {name} is used twice", clause.at, f".{clause.name}({name}, …)", "another name")
    return name


def _slot(side: str, kind: str) -> Callable[[_Draft, Clause], None]:
    def read(draft: _Draft, clause: Clause) -> None:
        slots: dict[str, tuple[str, Clause]] = getattr(draft, side)
        slots[_new_name(clause, slots)] = kind, clause

    return read


def _graph(kind: str) -> Callable[[_Draft, Clause], None]:
    def read(draft: _Draft, clause: Clause) -> None:
        name = _new_name(clause, draft.graphs)
        draft.graphs[name] = Param(name, kind)

    return read


def _attr(draft: _Draft, clause: Clause) -> None:
    name = _new_name(clause, draft.attrs)
    kind = _name(clause, clause.arguments[1:], _FORMS[clause.name])
    if kind not in EXPECTED:
        near = ", ".join(difflib.get_close_matches(kind, EXPECTED, n=3)) or ", ".join(EXPECTED)
        raise wrong(f"{name}: unknown attribute type", clause.at, kind, near)
    is_required = clause.name == "REQUIRED_ATTR"
    default = None if is_required or len(clause.arguments) < 3 else clause.arguments[2]
    value = None if default is None else literal(default, kind, clause.at)
    draft.attrs[name] = AttrParam(name, kind, is_required, value)


def _symbol(draft: _Draft, clause: Clause) -> None:
    first = clause.arguments[0]
    is_quoted = len(first) == 1 and first[0].kind == "string"
    name = string(first[0]) if is_quoted else _name(clause, clause.arguments, _FORMS[clause.name])
    if not name.isidentifier() or not name.isascii():
        raise wrong("invalid name of a type", clause.at, first, _FORMS[clause.name])
    if name in draft.symbols:
        raise wrong(f"the type {name} is declared twice", clause.at, first, "another name")
    draft.symbols[name] = _members(clause.arguments[1], clause.at)


_CLAUSES: dict[str, tuple[tuple[int, ...], Callable[[_Draft, Clause], None]]] = {
    "INPUT": ((2,), _slot("inputs", "required")),
    "OPTIONAL_INPUT": ((2,), _slot("inputs", "optional")),
    "DYNAMIC_INPUT": ((2,), _slot("inputs", "dynamic")),
    "OUTPUT": ((2,), _slot("outputs", "required")),
    "DYNAMIC_OUTPUT": ((2,), _slot("outputs", "dynamic")),
    "REQUIRED_ATTR": ((2,), _attr),
    "ATTR": ((2, 3), _attr),
    "GRAPH": ((1,), _graph("required")),
    "DYNAMIC_GRAPH": ((1,), _graph("dynamic")),
    "DATATYPE": ((2,), _symbol),
}
"""How many arguments a clause takes, and what parses it. Other clauses do not matter for the prototype."""
_FORMS = {name: f".{name}(name, {_TYPE})" for name in _CLAUSES} | {
    "REQUIRED_ATTR": ".REQUIRED_ATTR(name, Int)", "ATTR": ".ATTR(name, Int, 1)",
    "GRAPH": ".GRAPH(name)", "DYNAMIC_GRAPH": ".DYNAMIC_GRAPH(name)",
    "DATATYPE": ".DATATYPE(T, TensorType({DT_FLOAT}))",
}  # fmt: skip


def _prototype(name: str, draft: _Draft) -> Prototype:
    """Build the prototype after all clauses are read: symbols may be declared after their use."""
    inputs = {_param(each, *slot, draft.symbols): slot for each, slot in draft.inputs.items()}
    outputs = {_param(each, *slot, draft.symbols): slot for each, slot in draft.outputs.items()}
    used = {param.symbol for param in inputs if param.symbol}
    for param, (_, clause) in (*inputs.items(), *outputs.items()):
        for symbol in param.promote:
            if symbol not in used:
                near = shortened(", ".join(sorted(used))) or "no symbol is the type of an input"
                raise wrong(f"{name}: no input has the type {symbol}", clause.at, clause.arguments[1], near)
    attrs, graphs = draft.attrs.values(), draft.graphs.values()
    return Prototype(name, tuple(inputs), tuple(outputs), tuple(attrs), tuple(graphs))


def _param(name: str, kind: str, clause: Clause, symbols: dict[str, tuple[str, ...]]) -> Param:
    given, param = clause.arguments[1], Param(name, kind)
    if len(given) == 1 and given[0].kind == "string":
        symbol = string(given[0])
        if symbol not in symbols:
            near = shortened(", ".join(symbols)) or f".DATATYPE({shortened(symbol)}, …) declares it"
            raise wrong(f"{name}: no DATATYPE declares this type", clause.at, given, near)
        return replace(param, dtypes=symbols[symbol], symbol=symbol)
    if given and given[0].text == "Promote" and is_inside(given[1:], "()"):
        parts = split(given[3:-2]) if is_inside(given[2:-1], "{}") else []
        if parts and all([word.kind for word in part] == ["string"] for part in parts):
            return replace(param, promote=tuple(string(word) for (word,) in parts))
    return replace(param, dtypes=_members(given, clause.at))


def _members(given: Sequence[Word], at: str) -> tuple[str, ...]:
    """Return the data types of a set or a list of sets."""
    inside = list(given)
    is_named = bool(inside) and inside[0].text == "TensorType"
    is_set = is_named and [word.text for word in inside[1:2]] == ["::"]
    inside = inside[2:] if is_set else inside[1:] if is_named else inside
    if len(inside) == 3 and inside[0].kind == "name" and is_inside(inside[1:], "()"):
        members = _SETS.get(inside[0].text.lower())
        if members is None:
            near = difflib.get_close_matches(inside[0].text, TYPE_SETS, n=3) or TYPE_SETS
            raise wrong("unknown set of data types", at, [inside[0]], ", ".join(near))
        return members
    is_in_parentheses = is_named and is_inside(inside, "()")
    inside = inside[1:-1] if is_in_parentheses else inside
    if is_inside(inside, "{}") and not is_set:
        return tuple(dict.fromkeys(data_type(part, at) for part in split(inside[1:-1])))
    if is_in_parentheses and inside and not is_set:
        return (data_type(inside, at),)
    raise wrong("invalid type of a tensor", at, given, _TYPE)
