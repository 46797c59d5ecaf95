"""The call signature of a model as plain data, so that its graph can be called without the model's code.

It records where in the user's arguments each flat argument of the graph is found, and how the model's result
is rebuilt from the outputs of the graph.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchair.backend.export.trace import ResultIndex
from torchair.core.errors import BadCall, BadGraph, NotPossible
from torchair.core.torch_private.fake.pytree import children_of, leaves_by_path

Plain = bool | int | float | str | None
EMPTY = inspect.Parameter.empty
TUPLE = "tuple"
"""The kind of an output spec whose items are the fields of a named tuple."""


class Fields(dict[str, Any]):
    """Results by name if the class that the model returned is not loaded: `out["logits"]`, `out.logits`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"the model's result has no field {name!r}, only {', '.join(self)}"
            ) from None


# Arguments


def parameters_of(function: Callable[..., Any]) -> list[tuple[str, str, bool]]:
    """Return the name and kind of each parameter, and whether it is optional."""
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind.name, each.default is not EMPTY) for each in found]


def signature_of(parameters: Sequence[Sequence[Any]]) -> inspect.Signature:
    """Return the signature with these parameters; raise `BadGraph` if they are invalid."""
    try:
        return inspect.Signature(
            [
                inspect.Parameter(
                    name, getattr(inspect.Parameter, kind), default=None if is_optional else EMPTY
                )
                for name, kind, is_optional in parameters
            ]
        )
    except ValueError as error:
        raise BadGraph(f"the file has an invalid call signature: {error}") from error


def arguments_of(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Bind the arguments of a call to parameters; raise `BadCall` if they do not match."""
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise BadCall(
            f"the arguments do not match the signature of the exported model: {error}", near=str(signature)
        ) from None


def leaves_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of the arguments by their paths: `['x']`, `['cache'][0]`."""
    return leaves_by_path(dict(arguments))


def parameter_at(path: str) -> str:
    """Return the parameter that a leaf's path begins with."""
    return path[2 : path.index("']")]


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the default values of parameters."""
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.default is not EMPTY}


# Results


def form_of(result: Any, place_of: Callable[[torch.Tensor], list[Any]], is_of_one_size: bool = True) -> Any:
    """Describe the result of a model as data; `place_of` returns the origin of each tensor."""
    if isinstance(result, torch.Tensor):
        return {"tensor": place_of(result)}
    if isinstance(result, ResultIndex):
        return {"tensor": ["output", result.place]}
    if result is None or isinstance(result, bool | int | float | str):
        return {"value": result}
    kind = type(result)
    if dataclasses.is_dataclass(result) and not isinstance(result, Mapping):
        items = {each.name: getattr(result, each.name) for each in dataclasses.fields(result)}
    elif isinstance(result, Mapping):
        items = dict(result)
    elif isinstance(result, tuple) and (names := _fields_of(kind)) is not None:
        items = dict(zip(names, result, strict=True))
    elif isinstance(result, list | tuple):
        if kind is torch.Size and not is_of_one_size and not any(isinstance(n, ResultIndex) for n in result):
            raise NotPossible(
                "cannot export a model that returns the torch.Size of an argument with dynamic sizes",
                next="return the sizes one by one, for example x.size(0)",
            )
        base = "list" if isinstance(result, list) else "tuple"
        listed = [form_of(item, place_of, is_of_one_size) for item in result]
        return {base: listed, **({} if kind in (list, tuple) else {"type": _name_of(kind)})}
    else:
        children = children_of(result)
        if children is None:
            raise NotPossible(
                f"cannot export a model that returns a {kind.__module__}.{kind.__qualname__}",
                next="return tensors, numbers, or lists, tuples, dicts or dataclasses of them",
            )
        return {"list": [form_of(item, place_of, is_of_one_size) for item in children]}
    if not all(isinstance(key, str) for key in items):
        raise NotPossible(
            "cannot export a model that returns a dict with keys other than strings",
            got=repr(list(items)),
            next="return a dict with string keys",
        )
    return {
        "items": {key: form_of(item, place_of, is_of_one_size) for key, item in items.items()},
        "type": "" if kind is dict else _name_of(kind),
        **({"kind": TUPLE} if issubclass(kind, tuple) else {}),
    }


def _name_of(kind: type) -> str:
    """Return the name by which `_class_at` finds a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _fields_of(kind: type) -> tuple[str, ...] | None:
    """Return the field names of a named tuple, including torch's struct sequences; None for other classes."""
    if not issubclass(kind, tuple):
        return None
    is_structseq = isinstance(getattr(kind, "n_sequence_fields", None), int)
    names: Any = getattr(kind, "__match_args__" if is_structseq else "_fields", None)
    return names if isinstance(names, tuple) else None


def build(form: Mapping[str, Any], tensor_at: Callable[[list[Any]], Any]) -> Any:
    """Rebuild the model's result. Classes are looked up in loaded modules; nothing is imported."""
    match form:
        case {"tensor": place}:
            return tensor_at(place)
        case {"value": value}:
            return value
        case {"list": list(items)}:
            return _listed(str(form.get("type", "")), list, [build(item, tensor_at) for item in items])
        case {"tuple": list(items)}:
            return _listed(str(form.get("type", "")), tuple, [build(item, tensor_at) for item in items])
        case {"items": dict(items), "type": str(name), "kind": "tuple"}:
            return _named_tuple(name, {key: build(item, tensor_at) for key, item in items.items()})
        case {"items": dict(items), "type": str(name)}:
            fields = {key: build(item, tensor_at) for key, item in items.items()}
            return fields if not name else _instance(name, fields)
        case _:
            raise BadCall("the file describes the result in an unknown format", got=str(form)[:200])


def returns_arguments(form: Any) -> bool:
    """Whether the result contains an argument itself."""
    if isinstance(form, Mapping):
        place = form.get("tensor")
        return (
            place[:1] == ["input"] if isinstance(place, list) else any(map(returns_arguments, form.values()))
        )
    return isinstance(form, list) and any(map(returns_arguments, form))


def _class_at(name: str) -> Any:
    """Look up a name in a loaded module; None if it does not exist."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _instance(name: str, items: dict[str, Any]) -> Any:
    found = _class_at(name)
    is_known = isinstance(found, type) and (
        dataclasses.is_dataclass(found) or issubclass(found, dict) or hasattr(found, "_fields")
    )
    try:
        return _construct(found, items) if is_known else Fields(items)
    except TypeError:
        return Fields(items)  # the class has other fields now


def _construct(kind: type, items: dict[str, Any]) -> Any:
    """Create an instance with these items. All fields of a dataclass are set after construction: its
    constructor may not accept some of them, and may convert others a second time.
    """
    if not dataclasses.is_dataclass(kind) or issubclass(kind, Mapping):
        return kind(**items)
    fields = {each.name: each.init for each in dataclasses.fields(kind)}
    instance = kind(**{name: item for name, item in items.items() if fields.get(name, True)})
    for name, item in items.items():
        object.__setattr__(instance, name, item)
    return instance


def _listed(name: str, base: type[list[Any]] | type[tuple[Any, ...]], items: list[Any]) -> Any:
    """Return a list or tuple, of the class that the model returned if that is loaded."""
    found = _class_at(name)
    if not isinstance(found, type) or not issubclass(found, base):
        return base(items)
    try:
        return found(items)
    except TypeError:
        return base(items)  # the class has another constructor


def _named_tuple(name: str, items: dict[str, Any]) -> tuple[Any, ...]:
    """Return a named tuple of the class that the model returned. If that is not loaded, or has other fields
    now, create a class with the same name and fields.
    """
    found, fields = _class_at(name), tuple(items)
    if not isinstance(found, type) or _fields_of(found) != fields:
        found = _new_class(name.rpartition(":")[2].rpartition(".")[2], fields)
    if hasattr(found, "n_sequence_fields"):
        return found(tuple(items.values()))
    return tuple.__new__(found, items.values())  # without the class's own `__new__`, which may convert items


@functools.cache
def _new_class(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    try:
        return namedtuple(name if name.isidentifier() else "Result", fields)  # pyright: ignore[reportUntypedNamedTuple]
    except ValueError as error:
        raise BadGraph(f"the file describes a named tuple with invalid field names: {error}") from error
