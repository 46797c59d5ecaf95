"""How a model is called, as plain data: where in the user's arguments each flat argument of its graph is
found, and how the results of the graph are put together. With it a graph is called like the model, without
its code.
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
"""How a form says that items are the fields of a named tuple."""


class Fields(dict[str, Any]):
    """Results by name where the class that the model returned is not loaded: `out["logits"]` or
    `out.logits`.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the model returned no {name!r}, but {', '.join(self)}") from None


# Arguments


def parameters_of(function: Callable[..., Any]) -> list[tuple[str, str, bool]]:
    """Name, kind and "may be left out" of each parameter."""
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind.name, each.default is not EMPTY) for each in found]


def signature_of(parameters: Sequence[Sequence[Any]]) -> inspect.Signature:
    """The signature that has these parameters."""
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
        raise BadGraph(f"no function has such parameters: {error}") from error


def arguments_of(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """What a call gives, by parameter."""
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise BadCall(f"the model cannot be called so: {error}") from None


def leaves_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of what parameters have, by their place: `['x']`, `['cache'][0]`."""
    return leaves_by_path(dict(arguments))


def parameter_at(path: str) -> str:
    """The parameter that a leaf is of."""
    return path[2 : path.index("']")]


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """What parameters have where a call leaves them out."""
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.default is not EMPTY}


# Results


def form_of(result: Any, place_of: Callable[[torch.Tensor], list[Any]], is_of_one_size: bool = True) -> Any:
    """What a model returned, as data; `location_of` says where a tensor of it comes from."""
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
                "the model returns the torch.Size of an argument, which is another one in each call",
                next="return its sizes one by one, as x.size(0)",
            )
        base = "list" if isinstance(result, list) else "tuple"
        listed = [form_of(item, place_of, is_of_one_size) for item in result]
        return {base: listed, **({} if kind in (list, tuple) else {"type": _name_of(kind)})}
    else:
        children = children_of(result)
        if children is None:
            raise NotPossible(
                f"the model returns a {kind.__module__}.{kind.__qualname__}, which no file can hold",
                next="return tensors, numbers, and lists, tuples, dicts or dataclasses of them",
            )
        return {"list": [form_of(item, place_of, is_of_one_size) for item in children]}
    if not all(isinstance(key, str) for key in items):
        raise NotPossible("the model returns a dict whose keys are no strings", got=repr(list(items)))
    return {
        "items": {key: form_of(item, place_of, is_of_one_size) for key, item in items.items()},
        "type": "" if kind is dict else _name_of(kind),
        **({"kind": TUPLE} if issubclass(kind, tuple) else {}),
    }


def _name_of(kind: type) -> str:
    """Return where `_class_at` finds a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _fields_of(kind: type) -> tuple[str, ...] | None:
    """The names of the fields of a named tuple, which may be one of torch's; None of other classes."""
    if not issubclass(kind, tuple):
        return None
    is_structseq = isinstance(getattr(kind, "n_sequence_fields", None), int)
    names: Any = getattr(kind, "__match_args__" if is_structseq else "_fields", None)
    return names if isinstance(names, tuple) else None


def build(form: Mapping[str, Any], tensor_at: Callable[[list[Any]], Any]) -> Any:
    """The result again. A class is found where its module is loaded; nothing is imported."""
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
            raise BadCall("the file describes a result of no known kind", got=str(form)[:200])


def returns_arguments(form: Any) -> bool:
    """Is something of the result an argument as it was given?"""
    if isinstance(form, Mapping):
        place = form.get("tensor")
        return (
            place[:1] == ["input"] if isinstance(place, list) else any(map(returns_arguments, form.values()))
        )
    return isinstance(form, list) and any(map(returns_arguments, form))


def _class_at(name: str) -> Any:
    """What a loaded module has at this place."""
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
        return _made(found, items) if is_known else Fields(items)
    except TypeError:
        return Fields(items)  # a class of other fields


def _made(kind: type, items: dict[str, Any]) -> Any:
    """An instance with these items. A constructor of a dataclass does not take all fields, and may change
    what it takes, which it has done once before.
    """
    if not dataclasses.is_dataclass(kind) or issubclass(kind, Mapping):
        return kind(**items)
    fields = {each.name: each.init for each in dataclasses.fields(kind)}
    made = kind(**{name: item for name, item in items.items() if fields.get(name, True)})
    for name, item in items.items():
        object.__setattr__(made, name, item)
    return made


def _listed(name: str, base: type[list[Any]] | type[tuple[Any, ...]], items: list[Any]) -> Any:
    """A list or tuple, of the class that the model returned where that is loaded."""
    found = _class_at(name)
    if not isinstance(found, type) or not issubclass(found, base):
        return base(items)
    try:
        return found(items)
    except TypeError:
        return base(items)  # a class that takes more, or others


def _named_tuple(name: str, items: dict[str, Any]) -> tuple[Any, ...]:
    """Of the class that the model returned, or of one with the same name and fields where that is not loaded
    or has other fields now.
    """
    found, fields = _class_at(name), tuple(items)
    if not isinstance(found, type) or _fields_of(found) != fields:
        found = _like_it(name.rpartition(":")[2].rpartition(".")[2], fields)
    if hasattr(found, "n_sequence_fields"):
        return found(tuple(items.values()))
    return tuple.__new__(found, items.values())  # as the model left it: `__new__` may have done more


@functools.cache
def _like_it(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """A class of named tuples."""
    try:
        return namedtuple(name if name.isidentifier() else "Result", fields)  # pyright: ignore[reportUntypedNamedTuple]
    except ValueError as error:
        raise BadGraph(f"the file describes a named tuple with fields that none can have: {error}") from error
