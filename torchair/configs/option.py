"""Define options: an option is a row (`Option`), rows belong to groups (`Group`), and groups can be nested.

The storage of a group holds only assigned values; every other fact is read from the row. Reading an option
returns a `Cell`, a live view that follows the reading rules of the public API. `freeze` returns plain values
for the rest of the package.
"""

# Option, Cell, Group and the functions below are one mechanism; private names separate it from the names of
# options.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast, overload

from torchair.configs.kinds import BOOL, Kind
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOption, BadOptionType, UnknownOption

AUTO, REDUCE = "max-autotune", "reduce-overhead"
GRAPH_MODES = (AUTO,)
CAPTURE_MODES = (REDUCE, "npugraph_ex")
ALL_MODES = GRAPH_MODES + CAPTURE_MODES


class Engine(NamedTuple):
    """Describe how an option reaches the engine: key, scope (`local` to a graph, or `global`), and encoding.

    Unset options are omitted. So are values with the encoding None, and options with a disabled `gate`, which
    is an option of the same group.
    """

    key: str
    encode: Callable[[Any], str | None] | None = None
    gate: str = ""
    scope: str = "local"


@dataclass(eq=False)
class Option:
    """One option: default, help text, accepted values, and all other facts about it."""

    default: Any
    help: str
    kind: Kind = BOOL
    _: KW_ONLY
    flat: str = ""  # its name in torch.compile(options=...); a leading ! negates
    ex_only: bool = False  # the flat name exists for npugraph_ex only
    modes: tuple[str, ...] = ALL_MODES  # where it has an effect
    idle: str = ""  # the mode that warns when the option is set
    idle_always: bool = False  # ... and even when it has its default
    engine: Engine | None = None
    cached: bool = True  # it enters the cache key
    hint: bool = False  # for the Ascend engine: passed on with its options, and logged
    acts: bool = True  # something reads it; hints are read by the Ascend engine
    effect: str = ""  # the test that checks the effect: `tests/…/test_x.py::test_y`
    own: bool = False  # not part of the API that TorchAir implementations share
    plain: bool = False  # reads as a plain value instead of a Cell
    deprecated: Mapping[Any, str] = field(default_factory=dict[Any, str])  # value -> what to use instead
    name: str = field(default="", init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, group: None, owner: type) -> Option: ...
    @overload
    def __get__(self, group: Group, owner: type) -> Any: ...
    def __get__(self, group: Group | None, owner: type) -> Any:
        if group is None:
            return self
        return group._load(self) if self.plain else Cell(group, self)

    def __set__(self, group: Group, value: Any) -> None:
        group._store(self, self.kind.check(group._prefix + self.name, value))

    def __delete__(self, group: Group) -> None:
        """Reset the option to its default."""
        group._clear(self)


class Cell:
    """Live view of one option, the result of reading `config.group.option`."""

    __slots__ = ("_group", "_row")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, group: Group, row: Option) -> None:
        self._group = group
        self._row = row

    @property
    def raw(self) -> Any:
        """The plain Python value."""
        return self._group._load(self._row)

    @property
    def value(self) -> Any:
        """The value as the public API reads it: text; in the torchair tree True is "1" and False is "0"."""
        raw = self.raw
        if raw is None or self._row.kind.keeps:
            return raw
        if isinstance(raw, bool):
            return str(int(raw)) if self._group._bools_as_text else raw
        return str(raw)

    @value.setter
    def value(self, value: Any) -> None:
        self._row.__set__(self._group, value)

    @property
    def default(self) -> Any:
        return self._row.default

    @property
    def optional(self) -> list[Any] | None:
        """The allowed values, or None if they are not a list."""
        return self._row.kind.allowed

    def __bool__(self) -> bool:
        return bool(self.raw)

    def __eq__(self, other: object) -> bool:
        return bool(self.raw == (other.raw if isinstance(other, Cell) else other))

    def __repr__(self) -> str:
        return f"<{self._group._prefix}{self._row.name} = {self.raw!r}>"


class Group:
    """Hold options and nested groups. An unknown name raises an error; an `open` group stores it instead."""

    _rows: ClassVar[dict[str, Option]] = {}
    _nested: ClassVar[dict[str, Nested[Any]]] = {}
    _open: ClassVar[bool] = False
    _bools_as_text: ClassVar[bool] = True
    __hash__ = None  # type: ignore[assignment]

    def __init_subclass__(cls, *, rows: Mapping[str, Option] | None = None, open: bool = False) -> None:
        """Collect the rows of the class body, and add `rows` to them."""
        cls._open = open
        for name, row in (rows or {}).items():
            setattr(cls, name, row)
            row.__set_name__(cls, name)
        found = {name: item for name, item in vars(cls).items() if not name.startswith("__")}
        cls._rows = cls._rows | {name: item for name, item in found.items() if isinstance(item, Option)}
        cls._nested = cls._nested | {name: item for name, item in found.items() if isinstance(item, Nested)}

    def __init__(self, prefix: str = "", root: Group | None = None) -> None:
        self.__dict__.update(_prefix=prefix, _root=self if root is None else root, _raw={}, _extra={})
        groups = {name: part.kind(f"{prefix}{name}.", self._root) for name, part in self._nested.items()}
        self.__dict__["_groups"] = groups

    _prefix: str
    _root: Group  # the tree that contains this group
    _raw: dict[str, Any]
    _groups: dict[str, Group]
    _extra: dict[str, Any]

    def __setattr__(self, name: str, value: Any) -> None:
        known = getattr(type(self), name, None)
        if hasattr(type(known), "__set__"):
            object.__setattr__(self, name, value)
        elif self._open:
            self._keep(name, value)
            Diagnostics().add(f"{self._prefix}{name} is not an option of torchair: its value has no effect")
        else:
            raise unknown_name(name, self._valid_names(), where=type(self).__name__)

    def __getattr__(self, name: str) -> Any:
        """Look up names without a row."""
        if name in self.__dict__.get("_extra", {}):
            return self._extra[name]
        raise unknown_name(name, self._valid_names(), where=type(self).__name__)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and dict(settings(self)) == dict(settings(cast(Group, other)))

    def __repr__(self) -> str:
        inner = ", ".join(f"{path}={value!r}" for path, value in assigned(self).items())
        return f"{type(self).__name__}({inner})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        """Copy containers, and share callables and other objects: a copied pass stays the same pass."""
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__dict__.update({key: _copied(value, memo) for key, value in self.__dict__.items()})
        return twin

    def __copy__(self) -> Group:
        return copy.deepcopy(self)

    def _load(self, row: Option) -> Any:
        return self._raw.get(row.name, row.default)

    def _store(self, row: Option, value: Any) -> None:
        self._raw[row.name] = value
        if not row.acts and value != row.default:
            what = f"{self._prefix}{row.name}={value!r} has no effect in this version of torchair"
            Diagnostics().add(what)

    def _clear(self, row: Option) -> None:
        self._raw.pop(row.name, None)

    def _keep(self, name: str, value: Any) -> None:
        self._extra[name] = value

    def _valid_names(self) -> list[str]:
        return [name for name in (*self._rows, *self._nested) if not name.startswith("__")]


G = TypeVar("G", bound=Group)


class Nested(Generic[G]):
    """Place a group inside a group; assignment replaces it as a whole, unless it is `fixed`."""

    def __init__(self, kind: type[G], *, fixed: bool = False) -> None:
        self.kind = kind
        self.fixed = fixed

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, group: None, owner: type) -> Nested[G]: ...
    @overload
    def __get__(self, group: Group, owner: type) -> G: ...
    def __get__(self, group: Group | None, owner: type) -> Nested[G] | G:
        return self if group is None else cast(G, group._groups[self.name])

    def __set__(self, group: Group, value: G) -> None:
        path = group._prefix + self.name
        if self.fixed:
            raise BadOption(f"{path} cannot be replaced", next=f"assign the options inside {path} one by one")
        if not isinstance(value, self.kind):
            got = f"{value!r} ({type(value).__name__})"
            raise BadOptionType(f"{path} must be a {self.kind.__name__}", got=got)
        group._groups[self.name] = value
        _move_to(group._root, value)


class Alias:
    """Provide another name for the option at `path` of the tree, for reading and assigning."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __get__(self, group: Group | None, owner: type) -> Any:
        return self if group is None else getattr(*_parent(group._root, self.path))

    def __set__(self, group: Group, value: Any) -> None:
        assign(group._root, self.path, value)

    def __delete__(self, group: Group) -> None:
        delattr(*_parent(group._root, self.path))


class CellOf:
    """Provide a second name for a plain option that reads as its Cell (`_path` for `path`)."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, group: Group | None, owner: type) -> Cell | CellOf:
        return self if group is None else Cell(group, group._rows[self._name])

    def __set__(self, group: Group, value: Any) -> None:
        setattr(group, self._name, value)


class FlatView(Group):
    """Show options of a tree under flat names; options with a `!` name are negated."""

    _paths: ClassVar[dict[str, str]] = {}

    def __init_subclass__(
        cls,
        *,
        paths: Mapping[str, str] | None = None,
        rows: Mapping[str, Option] | None = None,
        open: bool = False,
    ) -> None:
        super().__init_subclass__(rows=rows, open=open)
        cls._paths = cls._paths | dict(paths or {})

    def __init__(self, root: Group, prefix: str = "") -> None:
        super().__init__(prefix, root)

    def _load(self, row: Option) -> Any:
        path = self._paths[row.name]
        value = cell(self._root, path.removeprefix("!")).raw
        return not value if path.startswith("!") else value

    def _store(self, row: Option, value: Any) -> None:
        path = self._paths[row.name]
        assign(self._root, path.removeprefix("!"), not value if path.startswith("!") else value)

    def _clear(self, row: Option) -> None:
        group, name = _parent(self._root, self._paths[row.name].removeprefix("!"))
        delattr(group, name)

    def _keep(self, name: str, value: Any) -> None:
        self._root._extra[self._prefix + name] = value

    def __getattr__(self, name: str) -> Any:
        root = self.__dict__.get("_root")
        if root is not None and self._prefix + name in root._extra:
            return root._extra[self._prefix + name]
        return super().__getattr__(name)


def root_of(view: FlatView) -> Group:
    """Return the tree that holds the values of a flat view."""
    return view._root


def walk(group: type[Group], prefix: str = "") -> Iterator[tuple[str, Option]]:
    """Yield all rows with their dotted paths, in declaration order."""
    for name, row in group._rows.items():
        yield prefix + name, row
    for name, nested in group._nested.items():
        yield from walk(nested.kind, f"{prefix}{name}.")


def flat_names(tree: type[Group], *, ex: bool) -> dict[str, str]:
    """Return the path of each flat name, with ! if negated; `ex` adds the names of npugraph_ex."""
    found: dict[str, str] = {}
    for path, row in walk(tree):
        if row.flat and (ex or not row.ex_only):
            found[row.flat.removeprefix("!")] = "!" + path if row.flat.startswith("!") else path
    return found


def flat_rows(tree: type[Group], *, ex: bool) -> dict[str, Option]:
    """Return the row of each flat name; the default is negated if the name is."""
    rows = dict(walk(tree))
    flat: dict[str, Option] = {}
    for name, path in flat_names(tree, ex=ex).items():
        row = rows[path.removeprefix("!")]
        default = not row.default if path.startswith("!") else row.default
        flat[name] = replace(row, default=default, plain=False)
    return flat


def cell(root: Group, path: str) -> Cell:
    """Return the option at a dotted path."""
    group, name = _parent(root, path)
    return Cell(group, group._rows[name])


def assign(root: Group, path: str, value: Any) -> None:
    """Assign `root.<path> = value` with the usual checks."""
    group, name = _parent(root, path)
    setattr(group, name, value)


def settings(group: Group) -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and plain value of all options, and of unknown names in open groups."""
    for name, row in group._rows.items():
        yield name, group._load(row)
    yield from group._extra.items()
    for name, inner in group._groups.items():
        for path, value in settings(inner):
            yield f"{name}.{path}", value


def assigned(group: Group) -> dict[str, Any]:
    """Return the dotted path and plain value of each option that differs from its default."""
    defaults = {path: row.default for path, row in walk(type(group))}
    return {path: value for path, value in settings(group) if path not in defaults or value != defaults[path]}


def touched(group: Group) -> set[str]:
    """Return the paths of all assigned options, including those assigned their default."""
    inner = {f"{name}.{path}" for name, part in group._groups.items() for path in touched(part)}
    return inner | set(group._raw)


def aliases(group: type[Group], prefix: str = "") -> dict[str, str]:
    """Return the dotted path of each alias and the path of its option."""
    named = {name: item for kind in reversed(group.__mro__) for name, item in vars(kind).items()}
    found = {prefix + name: item.path for name, item in named.items() if isinstance(item, Alias)}
    for name, nested in group._nested.items():
        found |= aliases(nested.kind, f"{prefix}{name}.")
    return found


def unknown_name(name: str, valid: list[str], *, where: str) -> UnknownOption:
    """Return the error for an unknown option name."""
    close = difflib.get_close_matches(name, valid, n=1)
    return UnknownOption(
        f"{where} has no option {name!r}",
        near="valid names: " + ", ".join(valid),
        next=f"did you mean {close[0]!r}?" if close else "see docs/reference/options.md",
    )


def _parent(root: Group, path: str) -> tuple[Group, str]:
    *groups, name = path.split(".")
    for part in groups:
        if part not in root._nested and not isinstance(getattr(type(root), part, None), property):
            raise unknown_name(part, root._valid_names(), where=type(root).__name__)
        root = getattr(root, part)
    return root, name


def _move_to(root: Group, group: Group) -> None:
    """Move a group and its nested groups to another tree."""
    group.__dict__["_root"] = root
    for inner in group._groups.values():
        _move_to(root, inner)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, Group):
        return copy.deepcopy(value, memo)
    if type(value) is dict:
        return {key: _copied(item, memo) for key, item in cast(dict[Any, Any], value).items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(item, memo) for item in value)
    return value
