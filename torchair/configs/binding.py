"""How code behind the door reads options: as fields of a dataclass, each declared with the name of its row.

    capture_limit: int = from_row("debug.aclgraph.static_capture_size_limit")

The name is the path of the option or its flat name. Default and checks are the row's; a field adds its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, TypeVar, cast

from torchair.configs.compiler_config import OptionTree
from torchair.configs.option import Group, flat_names, walk

Reader = TypeVar("Reader")


def by_name(tree: type[Group], values: Mapping[str, Any]) -> dict[str, Any]:
    """All options of the tree, by path and by flat name: as in `values` (by path), or as their rows say."""
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
    """A field of a dataclass that reads this option."""
    return field(default=default_of(name), metadata={"option": name})


def default_of(name: str) -> Any:
    """What the row says, for a parameter that may be left out."""
    return _DEFAULTS[name]


def read(kind: type[Reader], options: Mapping[str, Any], /, **others: Any) -> Reader:
    """The dataclass filled from `options`, which `by_name` made; `others` are fields that are no options."""
    return kind(**{name: options[option] for name, option in _options_of(kind).items()}, **others)


def check(reader: object) -> None:
    """Hold the values of a dataclass to the rows of its fields."""
    for name, option in _options_of(type(reader)).items():
        path = _PATHS[option]
        _ROWS[path].kind.check(path, getattr(reader, name))


def paths_read(kind: type) -> set[str]:
    """The paths of the options that a dataclass reads."""
    return {_PATHS[option] for option in _options_of(kind).values()}


def _options_of(kind: type) -> dict[str, str]:
    """Field -> option."""
    found = fields(cast(Any, kind))
    return {item.name: item.metadata["option"] for item in found if "option" in item.metadata}
