"""Write configs as JSON text: the options that differ from their defaults, by name.

Reading executes no code: a callable is written as its name, and the caller passes the function itself.
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
    """Base of configurations that can be written as JSON and read back."""

    def to_json(self) -> str:
        """Return the options that differ from their defaults as JSON text.

        Returns:
            The JSON text. Callables are written as their names; pass them to `from_json` when you read the
            text.

        Raises:
            BadOptionType: A value cannot be written as JSON.
        """
        options = {path: _encode(path, value) for path, value in assigned(self).items()}
        return json.dumps({"config": _label(type(self)), "options": options}, indent=2)

    @classmethod
    def from_json(cls: type[C], text: str, *, callables: Callables | None = None) -> C:
        """Create a config from JSON text, with the same checks as assignments.

        Args:
            text: The result of `to_json`.
            callables: Maps the names that `to_json` wrote to functions.

        Returns:
            A new config of this class.

        Raises:
            BadOption: The text is not the JSON of such a config, or a callable is missing.
            UnknownOption: The text names an option that does not exist.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise BadOption("cannot parse the config as JSON", got=text[:60], at=str(error)) from error
        config = cls()
        for path, value in _options(cls, content).items():
            assign(config, path, _decode(path, value, callables or {}))
        return config


def callable_name(function: Callable[..., Any]) -> str:
    """Return `package.module.name` of a function; for a callable object, the name of its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _label(config: type[Group]) -> str:
    """Return `torchair` or `npugraph_ex`."""
    return "npugraph_ex" if config.__module__.endswith("npugraph_ex") else "torchair"


def _options(cls: type[Group], content: Any) -> dict[str, Any]:
    options = content.get("options") if isinstance(content, dict) else None
    if not isinstance(options, dict):
        raise BadOption(
            "the JSON of a config must be an object with an object 'options'", got=repr(content)[:60]
        )
    if content.get("config") != _label(cls):
        got = f"{content.get('config')!r}, expected {_label(cls)!r}"
        raise BadOption("the JSON was written by another kind of config", got=got)
    return cast(dict[str, Any], options)


def _encode(path: str, value: Any) -> Any:
    """Encode a value as JSON; a type that JSON lacks becomes an object with one key that starts with $."""
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
            f"cannot read the callable {path} from JSON, which holds only its name",
            got=name,
            next=f"pass callables={{{name!r}: function}} to from_json, or assign {path} afterwards",
        )
    return callables[name]
