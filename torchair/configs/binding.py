"""Bind options to dataclass fields: each field names the option that it reads.

    capture_limit: int = from_row("debug.aclgraph.static_capture_size_limit")

The name is the path of the option or its flat name. The option row holds the default and the checks; the
field adds the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, TypeVar, cast

from torchair.configs.compiler_config import OptionTree
from torchair.configs.option import Group, flat_names, walk

Reader = TypeVar("Reader")


def by_name(tree: type[Group], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of the tree by path and by flat name; missing ones have their default."""
    found = {path: values.get(path, row.default) for path, row in walk(tree)}
    assert values.keys() <= found.keys(), f"no such options: {values.keys() - found.keys()}"
    for name, path in flat_names(tree, ex=True).items():
        found[name] = not found[path[1:]] if path.startswith("!") else found[path]
    return found


_ROWS = dict(walk(OptionTree))
_PATHS = {path: path for path in _ROWS} | {
    name: path.removeprefix("!") for name, path in flat_names(OptionTree, ex=True).items()
}
_DEFAULTS = by_name(OptionTree, {})


def from_row(name: str) -> Any:
    """Return a dataclass field that reads this option."""
    return field(default=default_of(name), metadata={"option": name})


def default_of(name: str) -> Any:
    """Return the default of the option, for a parameter with a default value."""
    return _DEFAULTS[name]


def read(kind: type[Reader], options: Mapping[str, Any], /, **others: Any) -> Reader:
    """Build the dataclass from the result of `by_name`; `others` are fields that are not options."""
    return kind(**{name: options[option] for name, option in _options_of(kind).items()}, **others)


def check(reader: object) -> None:
    """Check the field values of a dataclass against the rows of their options."""
    for name, option in _options_of(type(reader)).items():
        path = _PATHS[option]
        _ROWS[path].kind.check(path, getattr(reader, name))


def paths_read(kind: type) -> set[str]:
    """Return the paths of the options that a dataclass reads."""
    return {_PATHS[option] for option in _options_of(kind).values()}


def _options_of(kind: type) -> dict[str, str]:
    """Return the option name of each field."""
    found = fields(cast(Any, kind))
    return {item.name: item.metadata["option"] for item in found if "option" in item.metadata}
