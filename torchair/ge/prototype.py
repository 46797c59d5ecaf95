"""Op prototypes: the inputs, outputs and attributes of IR ops, read once from a table and parsed on first
use.
"""

from __future__ import annotations

import ast
import difflib
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchair.core import dtypes
from torchair.core.errors import BadGraph, UnknownOp
from torchair.core.registries.user_registrations import extend
from torchair.ge.header_words import EXPECTED

TABLES = ("ge_ops.json", "own.json")


@dataclass(frozen=True)
class Param:
    """An input or output: its kind is `required`, `optional` or `dynamic` (a list).

    Parameters with the same symbol have the same data type; `promote` are the symbols from whose types the
    type of an output is promoted.
    """

    name: str
    kind: str
    dtypes: tuple[str, ...] = ()
    symbol: str = ""
    promote: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttrParam:
    """An attribute: its type is a word of the catalogue (`Int`, `ListInt`, `Type` …)."""

    name: str
    type: str
    required: bool
    default: Any = None


@dataclass(frozen=True)
class Prototype:
    """One op of the catalogue."""

    name: str
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    attrs: tuple[AttrParam, ...]
    graphs: tuple[Param, ...] = ()

    @functools.cached_property
    def attr_by_name(self) -> dict[str, AttrParam]:
        return {attr.name: attr for attr in self.attrs}

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(param.name for param in self.inputs)

    def __str__(self) -> str:
        """Format as `Conv2D(x, filter, bias?, offset_w?; strides: ListInt, pads: ListInt, groups: Int = 1) ->
        y`.
        """
        mark = {"required": "", "optional": "?", "dynamic": "*"}
        inputs = ", ".join(p.name + mark[p.kind] for p in self.inputs)
        attrs = ", ".join(
            f"{a.name}: {a.type}" + ("" if a.required else f" = {a.default!r}") for a in self.attrs
        )
        outputs = ", ".join(p.name + mark[p.kind] for p in self.outputs) or "nothing"
        return f"{self.name}({inputs}{'; ' + attrs if attrs else ''}) -> {outputs}"


def _parse(name: str, row: dict[str, Any]) -> Prototype:
    def params(key: str) -> tuple[Param, ...]:
        return tuple(
            Param(
                p["name"], p["kind"], tuple(p.get("dtypes", ())),
                p.get("dtype_sym", ""), tuple(p.get("dtype_promote", ())),
            )
            for p in row[key]
        )  # fmt: skip

    attrs = tuple(
        AttrParam(a["name"], a["type"], a["required"], _default(a["type"], a.get("default")))
        for a in row["attrs"]
    )
    graphs = tuple(Param(graph["name"], graph["kind"]) for graph in row.get("graphs", ()))
    return Prototype(name, params("inputs"), params("outputs"), attrs, graphs)


def _default(kind: str, default: Any) -> Any:
    """Convert type defaults, which are written `DT_FLOAT` in the table, to runtime numbers."""
    if kind == "Type" and isinstance(default, str):
        return dtypes.BY_NAME[default.removeprefix("DT_")].runtime
    return default


class Catalogue(Mapping[str, Prototype]):
    """Hold all prototypes by op name, each parsed on first use."""

    def __init__(self) -> None:
        here = Path(__file__).parent / "opdefs"
        self._rows: dict[str, dict[str, Any]] = {}
        for table in TABLES:
            self._rows |= json.loads((here / table).read_text())
        self._parsed: dict[str, Prototype] = {}
        self._users: dict[str, str] = {}  # op -> the operator that its prototype was registered for, if any

    def __getitem__(self, name: str) -> Prototype:
        if name not in self._parsed:
            self._parsed[name] = _parse(name, self._rows[name])
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def check(self, proto: Prototype, at: str = "", owner: str = "") -> None:
        """Raise `BadGraph` if the op exists with another prototype, unless it has the same owner."""
        is_own = owner != "" and self.owner(proto.name) == owner
        if proto.name in self and self[proto.name] != proto and not is_own:
            raise BadGraph(
                f"the IR op {proto.name!r} already exists with another prototype",
                at=at,
                got=str(proto),
                near=f"{self[proto.name]}{differences(proto, self[proto.name])}",
                next="use another name; a changed prototype of a custom op takes effect in the next process",
            )

    def add(self, proto: Prototype, owner: str = "") -> bool:
        """Add a user's op; return whether it was new.

        Graphs were built with prototypes, so only the operator that a prototype was made for may replace it,
        when that operator is defined again.
        """
        self.check(proto, owner=owner)
        if proto.name in self and self[proto.name] == proto:
            return False
        self._rows[proto.name] = {}
        self._parsed[proto.name] = proto
        self._users[proto.name] = owner
        return True

    def owner(self, name: str) -> str:
        """Return the operator that the prototype of an op was made for, if any."""
        return self._users.get(name, "")

    def is_builtin(self, name: str) -> bool:
        """Return whether the op is built in, and not declared by a user."""
        return name in self and name not in self._users


def differences(one: Prototype, other: Prototype) -> str:
    """Return how the data types of prototypes with equal text differ, or ""."""
    if str(one) != str(other):
        return ""
    pairs = zip((*one.inputs, *one.outputs), (*other.inputs, *other.outputs), strict=True)
    return "".join(f"\n{mine.name}: {_types(mine)}, not {_types(its)}" for mine, its in pairs if mine != its)


def _types(param: Param) -> str:
    return " ".join((*param.dtypes, param.symbol, *param.promote)).strip() or "any type"


@functools.cache
def catalogue() -> Catalogue:
    """Return the one catalogue of this process."""
    return Catalogue()


_TEXT = re.compile(r"(\w+)\(([^;)]*)(?:;(.*))?\) -> (.+)", re.DOTALL)
_ATTRIBUTE = re.compile(r"(\w+): (\w+)(?: = (.+))?", re.DOTALL)
_MARKS = {"": "required", "?": "optional", "*": "dynamic"}


def register_prototype(text: str) -> Prototype:
    """Declare a custom IR op: `SplitLike(x, ref*, mask?; k: Int, tag: String = 'demo') -> head, tail*`.

    Args:
        text: Prototype. `?` marks an optional input, `*` a list. Attributes have a type of the catalogue
            and, unless required, a default.

    Returns:
        The parsed prototype.

    Raises:
        BadGraph: The text is not a valid prototype, or the op exists with another one.

    Example:
        torchair.ge.register_prototype("Scale(x; factor: Float = 1.0) -> y")
    """
    parsed = _TEXT.fullmatch(text.strip())
    if parsed is None:
        raise BadGraph(
            "invalid op prototype", got=text, near="Name(x, y?, z*; k: Int, f: Float = 1.0) -> out"
        )
    name, inputs, attrs, outputs = parsed.groups()
    proto = Prototype(
        name, _params(inputs), _params("" if outputs == "nothing" else outputs), _attributes(attrs or "")
    )
    declare(proto)
    return proto


def declare(proto: Prototype, owner: str = "") -> None:
    """Declare a prototype. It may replace one of the same owner, an operator."""
    if catalogue().add(proto, owner):
        extend(f"prototype {proto.name}", repr(proto))


def register_all(protos: Sequence[tuple[Prototype, str]]) -> None:
    """Declare ops, each given with its position in a file: all of them, or none if one exists with another
    prototype.
    """
    for proto, at in protos:
        catalogue().check(proto, at)
    for proto, _ in protos:
        declare(proto)


def _params(text: str) -> tuple[Param, ...]:
    marked = [part.strip() for part in text.split(",") if part.strip()]
    names = [each.rstrip("?*") for each in marked]
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise BadGraph(
            f"an op prototype uses the name {twice[0]!r} twice",
            got=text.strip(),
            next="give each input and each output its own name",
        )
    pairs = list(zip(names, marked, strict=True))
    if wrong := [each for name, each in pairs if not name.isidentifier() or each[len(name) :] not in _MARKS]:
        raise BadGraph("invalid input or output of an op prototype", got=wrong[0], near="x, y?, z*")
    return tuple(Param(name, _MARKS[each.removeprefix(name)]) for name, each in pairs)


def _attributes(text: str) -> tuple[AttrParam, ...]:
    """Parse attributes; a comma may be part of a default, so a new attribute begins at `, name: `."""
    results: list[AttrParam] = []
    for part in re.split(r",\s*(?=\w+: )", text.strip()) if text.strip() else ():
        parsed = _ATTRIBUTE.fullmatch(part.strip())
        if parsed is None:
            raise BadGraph("invalid attribute of an op prototype", got=part, near="k: Int, f: Float = 1.0")
        name, kind, default = parsed.groups()
        if kind not in EXPECTED:
            near = ", ".join(difflib.get_close_matches(kind, EXPECTED) or EXPECTED)
            raise BadGraph(f"{name}: unknown attribute type", got=kind, near=near)
        try:
            value = None if default is None else ast.literal_eval(default)
        except (ValueError, SyntaxError) as error:
            near = "1, 1.0, True, 'text', [1, 2] or None"
            why = f"the default of {name} is not a valid Python value"
            raise BadGraph(why, got=str(default), near=near) from error
        results.append(AttrParam(name, kind, default is None, value))
    return tuple(results)


def prototype(name: str) -> Prototype:
    """Return the prototype of an op, or raise an error with the nearest spellings."""
    ops = catalogue()
    if name not in ops:
        near = difflib.get_close_matches(name, ops, n=3)
        raise UnknownOp(
            f"the catalogue of {len(ops)} IR ops has no op {name!r}",
            near=", ".join(near),
            next="check the spelling, or declare the op with torchair.ge.prototype.register_prototype",
        )
    return ops[name]
