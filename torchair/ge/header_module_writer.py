"""Write prototypes as text: the REG_OP of a header, and a Python module with a typed builder for each op.

Such a module declares its ops when it is imported. Its text is formatted as ruff formats it, for any line
length, so that it can live next to hand-written code.
"""

from __future__ import annotations

import keyword
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from torchair.core import dtypes
from torchair.ge.graph import INPUT_TYPES
from torchair.ge.header_parser import BEGIN, END
from torchair.ge.header_words import WITHOUT_VALUE
from torchair.ge.prototype import AttrParam, Param, Prototype

WIDTH = 80
"""Width of a clause, and of text on one line: the narrowest that projects use, less the indent."""
IS_KEYWORD, IS_TAKEN = "_changed_as_is_python_key", "_changed_as_duplicate_with_input"
"""Endings of names that collide with Python keywords or other parameters. Graphs use the IR names."""
_CLAUSES = {
    "inputs": {"required": "INPUT", "optional": "OPTIONAL_INPUT", "dynamic": "DYNAMIC_INPUT"},
    "outputs": {"required": "OUTPUT", "dynamic": "DYNAMIC_OUTPUT"},
    "graphs": {"required": "GRAPH", "dynamic": "DYNAMIC_GRAPH"},
}
_SLOTS = {"required": "Tensor", "optional": "Tensor | None", "dynamic": "list[Tensor]"}
_ITEMS = {"Int": "int", "Float": "float", "Bool": "bool", "String": "str", "Type": "int"}
_TEXTS = {"\n": r"\n", "\t": r"\t", "\r": r"\r", '"': r"\"", "\\": r"\\"}
_CONTROL = re.compile(r'[\x00-\x1f\x7f"\\]')
_OF_MODULE = (
    "ge", "Any", "Tensor", "PROTOTYPES", "annotations", "list", "tuple", "int", "float", "bool", "str",
)  # fmt: skip
_FUTURE = "from __future__ import annotations\n"
_HEAD = '''"""{title}

Importing this declares the ops; each function adds its op to the graph that is being
built. Made by `python -m torchair codegen`: change the header, not this file.
"""

from __future__ import annotations

{imports}
PROTOTYPES = """
{text}
"""

ge.register_reg_op(PROTOTYPES, __name__)
'''


def reg_op_text(proto: Prototype) -> str:
    """Return the REG_OP of a header that declares this prototype."""
    symbols = {param.symbol: param.dtypes for param in (*proto.inputs, *proto.outputs) if param.symbol}
    lines = [f"{BEGIN}({proto.name})"]
    lines += [_wrapped(f".DATATYPE({symbol}, ", _types(members)) for symbol, members in symbols.items()]
    for side in ("inputs", "outputs"):
        for param in getattr(proto, side):
            lines.append(_wrapped(f".{_CLAUSES[side][param.kind]}({param.name}, ", _type_of(param)))
    lines += [_attribute(row) for row in proto.attrs]
    lines += [f".{_CLAUSES['graphs'][param.kind]}({param.name})" for param in proto.graphs]
    return "\n    ".join([*lines, f".{END}({proto.name})"])


def _wrapped(begin: str, types: str) -> str:
    """Return a clause whose list of data types may need several lines."""
    indent = " " * (len(begin.partition("(")[0]) + 1)
    found = textwrap.wrap(
        f"{begin}{types})", WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n    ".join(found)


def _types(members: Sequence[str]) -> str:
    return f"TensorType({{{', '.join(f'DT_{member}' for member in members)}}})"


def _type_of(param: Param) -> str:
    if param.symbol:
        return _quoted(param.symbol)
    if param.promote:
        return f"Promote({{{', '.join(map(_quoted, param.promote))}}})"
    return _types(param.dtypes)


def _attribute(row: AttrParam) -> str:
    if row.required:
        return f".REQUIRED_ATTR({row.name}, {row.type})"
    if row.default is None:
        empty = f", {row.type}()" if row.type in WITHOUT_VALUE else ""
        return f".ATTR({row.name}, {row.type}{empty})"
    return f".ATTR({row.name}, {row.type}, {_literal(row.default, row.type)})"


def _literal(value: Any, kind: str) -> str:
    if kind.startswith("List"):
        return f"{{{', '.join(_literal(item, kind.removeprefix('List')) for item in value)}}}"
    if kind == "Type":
        return f"DT_{dtypes.BY_RUNTIME[value].name}"
    if kind == "Bool":
        return "true" if value else "false"
    if kind == "String":
        return _quoted(value)
    assert math.isfinite(value), "C++ has literals of finite numbers only"
    return repr(float(value)) if kind == "Float" else str(value)


def _quoted(text: str) -> str:
    """Return a C++ string literal.

    Control characters are octal: a hexadecimal escape would absorb the digits after it.
    """

    def escaped(match: re.Match[str]) -> str:
        return _TEXTS.get(match.group(), f"\\{ord(match.group()):03o}")

    return f'"{_CONTROL.sub(escaped, text)}"'


def why_no_builder(proto: Prototype) -> str:
    """Return why a prototype gets no function of its own, or "" if it gets one."""
    if proto.graphs:
        return "it has sub-graphs"
    return "it is an input of graphs" if proto.name in INPUT_TYPES else ""


def module_text(protos: Sequence[Prototype], sources: Sequence[str]) -> str:
    """Return a Python module with a builder for each prototype, generated from these headers."""
    names: dict[str, str] = {}
    for proto in protos:
        if not why_no_builder(proto):
            names[_free(proto.name, {*_OF_MODULE, *names})] = proto.name
    by_name = {proto.name: proto for proto in protos}
    functions = "".join(f"\n\n{_function(name, by_name[op])}" for name, op in names.items())
    uses_any = re.search(r"^    \w+: (list\[)*Any\b", functions, re.MULTILINE)
    imports = "from typing import Any\n\n" if uses_any else ""
    imports += "from torchair import ge\n" + ("from torchair.ge import Tensor\n" if names else "")
    title = textwrap.shorten(f"Builders of the ops in {', '.join(sources)}.", WIDTH)
    text = _HEAD.format(
        title=_escaped(title), imports=imports, text=_escaped("\n\n".join(map(reg_op_text, protos)))
    )
    is_long = any(len(line) > WIDTH + 8 for line in (text + functions).split("\n"))
    # The line length is the user's setting: E501 may not be needed there.
    rules = ["B006"] * bool(names) + ["E501", "RUF100"] * is_long
    noqa = f"# ruff: noqa: {', '.join(rules)}\n" if rules else ""
    return text.replace(_FUTURE, noqa + _FUTURE, 1) + functions


def _free(name: str, taken: set[str]) -> str:
    """Return an unused Python name."""
    if keyword.iskeyword(name) or name == "__debug__":
        name += IS_KEYWORD
    while name in taken:
        name += IS_TAKEN
    return name


def _function(name: str, proto: Prototype) -> str:
    inputs, attrs, sizes = _parameters(proto)
    lines = [f"def {name}(", *_signature(proto, inputs, attrs, sizes), f") -> {_result(proto)}:"]
    lines += [f'    """Add the op `{proto.name}` to the graph.', ""]
    lines.append(textwrap.indent(_escaped(reg_op_text(proto)), "    "))
    lines += ['    """', f"    return ge.builder({_string(proto.name)})("]
    lines += [f"        {inputs[param.name]}," for param in proto.inputs]
    if sizes:
        lines += ["        outputs={", *_pairs(sizes), "        },"]
    if attrs:
        lines += ["        attrs={", *_pairs(attrs), "        },"]
    lines += ["        dependencies=dependencies,", "        node_name=node_name,", "    )", ""]
    return "\n".join(lines)


def _parameters(proto: Prototype) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the Python names of inputs, attributes and the sizes of list outputs."""
    taken = {"dependencies", "node_name", "ge"}

    def named(names: Sequence[str], begin: str = "") -> dict[str, str]:
        results: dict[str, str] = {}
        for name in names:
            results[name] = _free(begin + name, taken)
            taken.add(results[name])
        return results

    lists = [param.name for param in proto.outputs if param.kind == "dynamic"]
    inputs, attrs = named(proto.input_names), named([row.name for row in proto.attrs])
    return inputs, attrs, named(lists, "size_of_")


def _signature(
    proto: Prototype, inputs: dict[str, str], attrs: dict[str, str], sizes: dict[str, str]
) -> Iterator[str]:
    """Yield the lines of a signature. An input may be omitted if all inputs after it may be."""
    for number, param in enumerate(proto.inputs):
        is_last = all(later.kind == "optional" for later in proto.inputs[number:])
        yield f"    {inputs[param.name]}: {_SLOTS[param.kind]}{' = None' if is_last else ''},"
    yield "    *,"
    for size in sizes.values():
        yield f"    {size}: int,"
    for row in proto.attrs:
        begin = f"    {attrs[row.name]}: {_annotation(row)}"
        yield f"{begin}," if row.required else _value(row.default, f"{begin} = ", "    ")
    yield "    dependencies: list[Tensor] = [],"
    yield "    node_name: str | None = None,"


def _annotation(row: AttrParam) -> str:
    depth = row.type.count("List")
    item = _ITEMS.get(row.type.replace("List", ""), "Any")
    is_absent = not row.required and row.default is None and item != "Any"
    return "list[" * depth + item + "]" * depth + " | None" * is_absent


def _value(value: Any, begin: str, indent: str) -> str:
    """Return a value and a comma; a list that is too long for a line has one line per item."""
    line = f"{begin}{_python(value)},"
    if not isinstance(value, list) or not value or len(line) <= WIDTH:
        return line
    items = [_value(item, f"{indent}    ", f"{indent}    ") for item in value]
    return "\n".join([f"{begin}[", *items, f"{indent}],"])


def _python(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    return _string(value) if isinstance(value, str) else repr(value)


def _string(text: str) -> str:
    """Return the `repr` of a string, in double quotes unless that needs more escapes."""
    quote = "'" if text.count('"') > text.count("'") else '"'
    return quote + "".join(f"\\{each}" if each == quote else repr(each)[1:-1] for each in text) + quote


def _result(proto: Prototype) -> str:
    kinds = [_SLOTS[param.kind] for param in proto.outputs]
    if len(kinds) < 2:
        return kinds[0] if kinds else "None"
    line = f"tuple[{', '.join(kinds)}]"
    if len(f") -> {line}:") <= WIDTH:
        return line
    return "tuple[\n" + "".join(f"    {kind},\n" for kind in kinds) + "]"


def _pairs(names: dict[str, str]) -> Iterator[str]:
    for name, parameter in names.items():
        yield f"            {_string(name)}: {parameter},"


def _escaped(text: str) -> str:
    """Escape text for triple quotes."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
