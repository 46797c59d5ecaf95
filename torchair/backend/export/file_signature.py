"""How the graph of a file is called: as the file says, which is checked here, or as its inputs tell. Sizes
are numbers, or arithmetic on names as text.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchair.backend.export.signature import returns_arguments, signature_of
from torchair.backend.export.size_expr import names_in
from torchair.backend.export.writer import CALL
from torchair.core import dtypes
from torchair.core.errors import BadGraph
from torchair.ge.attr import ListInt, Str
from torchair.ge.graph import Desc, Graph


@dataclass(frozen=True)
class InputSpec:
    """One flat argument of a graph: a tensor, by where it is in the call or by the file with what it is at
    first; or a number, as text, or where it is in the call.
    """

    at: str = ""
    sizes: tuple[int | str, ...] = ()
    dtype: int = dtypes.UNDEFINED
    number: str = ""
    state: str = ""

    @property
    def title(self) -> str:
        """What the user calls it."""
        return title_of(self.at)

    @property
    def names(self) -> set[str]:
        """The symbols that its sizes or its number are made of."""
        texts = [size for size in (*self.sizes, self.number) if isinstance(size, str) and size]
        return {name for text in texts for name in names_in(text)}

    @property
    def tells(self) -> set[str]:
        """The symbols whose value a call gives with it."""
        return {self.number} if self.number and self.at else {str(s) for s in self.sizes if _is_name(s)}


@dataclass
class FileSignature:
    """How a graph is called."""

    parameters: list[Any]
    inputs: list[InputSpec]
    result: Any
    places: list[str] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)
    same: list[list[str]] = field(default_factory=list)
    unread: list[InputSpec] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    symbols: dict[str, list[int | None]] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    is_for_each_size: bool = False

    def __post_init__(self) -> None:
        self.signature = signature_of(self.parameters)
        self.names = sorted({name for each in self.inputs for name in each.names})
        self.returns_arguments = returns_arguments(self.result)
        untold = set(self.names) - {name for each in (*self.inputs, *self.unread) for name in each.tells}
        if untold:
            raise BadGraph(f"no argument tells the sizes {', '.join(sorted(untold))}")


def title_of(path: str) -> str:
    """What the user calls a place in the arguments."""
    return path[2:].replace("']", "", 1) if path.startswith("['") else path


def form_of(graph: Graph) -> FileSignature:
    """What the file says; taken off the graph."""
    written = graph.attrs.pop(CALL, None)
    if written is None:
        return _obvious(graph)
    if not isinstance(written, Str):
        raise BadGraph(f"{graph.name} does not say how it is called", got=f"{CALL} is {written!r}")
    try:
        facts = json.loads(written.value)
    except (ValueError, RecursionError) as error:
        raise BadGraph(f"{graph.name} does not say how it is called: {error}") from error
    for name, (is_needed, is_right) in _FIELDS.items():
        if not isinstance(facts, dict) or (name not in facts and is_needed):
            raise BadGraph(f"{graph.name} does not say how it is called: no {name!r} in {CALL}")
        if name in facts and not is_right(facts[name]):
            raise BadGraph(
                f"{graph.name} does not say how it is called: {name!r} in {CALL} is no such thing",
                got=repr(facts[name])[:200],
            )
    said: dict[str, Any] = {name: facts[name] for name in _FIELDS if name in facts}
    for name in ("inputs", "unread"):
        said[name] = [_input(**row) for row in facts.get(name, ())]
    return FileSignature(**said)


def _input(sizes: Sequence[Any] = (), **rest: Any) -> InputSpec:
    return InputSpec(sizes=tuple(sizes), **rest)


def _obvious(graph: Graph) -> FileSignature:
    """The inputs in their order, each with the sizes its descriptor has; an unknown one is a symbol."""
    inputs: list[InputSpec] = []
    names = [op.name if op.name.isidentifier() else f"input{n}" for n, op in enumerate(graph.inputs)]
    for number, op in enumerate(graph.inputs):
        desc = op.outputs[0].desc
        shape = _logical(desc)
        if shape is None or any(size < -1 for size in shape):
            raise BadGraph(f"the input {op.name} of {graph.name} has no rank", got=str(shape))
        if not shape and desc.device == "CPU" and not dtypes.to_torch(desc.dtype).is_floating_point:
            inputs.append(InputSpec(f"['{names[number]}']", number=f"n{number}"))
            continue
        sizes = tuple(f"s{number}_{dim}" if size < 0 else size for dim, size in enumerate(shape))
        inputs.append(InputSpec(f"['{names[number]}']", sizes, desc.dtype))
    parameters = [(name, "POSITIONAL_OR_KEYWORD", False) for name in names]
    result = {"tuple": [{"tensor": ["output", place]} for place in range(len(graph.results))]}
    is_open = any(each.number or any(isinstance(size, str) for size in each.sizes) for each in inputs)
    return FileSignature(parameters, inputs, result, is_for_each_size=is_open)


def _logical(desc: Desc) -> tuple[int, ...] | None:
    """An input in an internal format has its sizes in an attribute, and none of its own."""
    origin = desc.attrs.get("origin_shape")
    return tuple(origin.value) if not desc.shape and isinstance(origin, ListInt) else desc.shape


# What the JSON must be

Check = Callable[[Any], bool]


def _list_of(is_right: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _dict_of(is_right: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(is_right, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _is_size(value: Any) -> bool:
    return value != "" if isinstance(value, str) else _is_number(value) and value >= 0


def _is_range(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and all(bound is None or _is_number(bound) for bound in value)


def _is_parameter(value: Any) -> bool:
    match value:
        case [str(name), str(kind), bool()]:
            return name.isidentifier() and hasattr(inspect.Parameter, kind) and kind.isupper()
        case _:
            return False


_INPUT: dict[str, Check] = {
    "at": _is_text,
    "sizes": _list_of(_is_size),
    "dtype": lambda value: _is_number(value) and value in dtypes.BY_RUNTIME,
    "number": _is_text,
    "state": _is_text,
}


def _is_input(value: Any) -> bool:
    return isinstance(value, dict) and all(
        name in _INPUT and _INPUT[name](item) for name, item in value.items()
    )


# Name -> is it needed, is it right.
_FIELDS: dict[str, tuple[bool, Check]] = {
    "parameters": (True, _list_of(_is_parameter)),
    "inputs": (True, _list_of(_is_input)),
    "result": (True, lambda value: isinstance(value, dict)),
    "places": (False, _list_of(_is_text)),
    "constants": (False, _dict_of(_is_text)),
    "defaults": (False, _dict_of(_is_text)),
    "same": (False, _list_of(_list_of(_is_text))),
    "unread": (False, _list_of(_is_input)),
    "guards": (False, _list_of(_is_text)),
    "symbols": (False, _dict_of(_is_range)),
    "examples": (False, _dict_of(_is_number)),
    "weights": (False, _list_of(_is_text)),
}
