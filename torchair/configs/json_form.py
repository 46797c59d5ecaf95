"""Configs as JSON text: what differs from the defaults, by name.

Nothing is executed while reading: a callable is written as its name, and the reader hands in the function.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torchair.configs.option import Group, assign, assigned
from torchair.core.errors import BadOption, BadOptionType

C = TypeVar("C", bound="JsonForm")
Callables = Mapping[str, Callable[..., Any]]


class JsonForm(Group):
    """A whole configuration that can be written as JSON and read back."""

    def to_json(self) -> str:
        """The options that differ from their defaults. Callables are named, not stored."""
        options = {path: _encode(path, value) for path, value in assigned(self).items()}
        return json.dumps({"config": _label(type(self)), "options": options}, indent=2)

    @classmethod
    def from_json(cls: type[C], text: str, *, callables: Callables | None = None) -> C:
        """A new config with the options of `text`, checked like assignments.

        `callables` maps the names that `to_json` wrote to functions.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise BadOption("this is not JSON", got=text[:60], at=str(error)) from error
        config = cls()
        for path, value in _options(cls, content).items():
            assign(config, path, _decode(path, value, callables or {}))
        return config


def callable_name(function: Callable[..., Any]) -> str:
    """`package.module.name` of a function; of an object that is called, the name of its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _label(config: type[Group]) -> str:
    """`torchair` or `npugraph_ex`."""
    return "npugraph_ex" if config.__module__.endswith("npugraph_ex") else "torchair"


def _options(cls: type[Group], content: Any) -> dict[str, Any]:
    options = content.get("options") if isinstance(content, dict) else None
    if not isinstance(options, dict):
        raise BadOption("the JSON of a config is an object with an object 'options'", got=repr(content)[:60])
    if content.get("config") != _label(cls):
        got = f"{content.get('config')!r}, expected {_label(cls)!r}"
        raise BadOption("the JSON belongs to another kind of config", got=got)
    return cast(dict[str, Any], options)


def _encode(path: str, value: Any) -> Any:
    """Plain JSON; what JSON lacks is an object with one key that starts with $."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_encode(path, item) for item in cast(list[Any], value)]
    if isinstance(value, tuple):
        return {"$tuple": [_encode(path, item) for item in cast(tuple[Any, ...], value)]}
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in items):
            return {key: _encode(path, item) for key, item in items}
        return {"$items": [[_encode(path, key), _encode(path, item)] for key, item in items]}
    if callable(value):
        return {"$callable": callable_name(value)}
    got = f"{value!r} ({type(value).__name__})"
    raise BadOptionType(f"{path} cannot be written as JSON", got=got, next=f"`del` {path} before writing")


def _decode(path: str, value: Any, callables: Callables) -> Any:
    if isinstance(value, list):
        return [_decode(path, item, callables) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    content = cast(dict[str, Any], value)
    if "$tuple" in content:
        return tuple(_decode(path, item, callables) for item in content["$tuple"])
    if "$items" in content:
        pairs = content["$items"]
        return {_decode(path, key, callables): _decode(path, item, callables) for key, item in pairs}
    if "$callable" not in content:
        return {key: _decode(path, item, callables) for key, item in content.items()}
    name = content["$callable"]
    if name not in callables:
        raise BadOption(
            f"{path} is a callable, and JSON holds only its name",
            got=name,
            next=f"pass callables={{{name!r}: function}} to from_json, or assign {path} afterwards",
        )
    return callables[name]
