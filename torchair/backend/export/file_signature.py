"""Read the call signature of a graph file, and validate it; without one, derive it from the graph's inputs.

Sizes are numbers, or text with arithmetic on names.
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
    """One flat argument of a graph.

    A tensor has a path in the call (`at`) or a file with its initial value (`state`). A number has a size
    expression, or a path in the call.
    """

    at: str = ""
    sizes: tuple[int | str, ...] = ()
    dtype: int = dtypes.UNDEFINED
    number: str = ""
    state: str = ""

    @property
    def title(self) -> str:
        """The argument as users write it."""
        return title_of(self.at)

    @property
    def names(self) -> set[str]:
        """The symbols in its sizes or its number."""
        texts = [size for size in (*self.sizes, self.number) if isinstance(size, str) and size]
        return {name for text in texts for name in names_in(text)}

    @property
    def defines(self) -> set[str]:
        """The symbols whose values are known from this argument."""
        return {self.number} if self.number and self.at else {str(s) for s in self.sizes if _is_name(s)}


@dataclass
class FileSignature:
    """The call signature of a graph file."""

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
        undefined = set(self.names) - {name for each in (*self.inputs, *self.unread) for name in each.defines}
        if undefined:
            raise BadGraph(f"no argument of the graph defines the sizes {', '.join(sorted(undefined))}")


def title_of(path: str) -> str:
    """Return a path in the arguments as users write it."""
    return path[2:].replace("']", "", 1) if path.startswith("['") else path


def form_of(graph: Graph) -> FileSignature:
    """Read the call signature of a graph, and remove its attribute from the graph."""
    written = graph.attrs.pop(CALL, None)
    if written is None:
        return _from_inputs(graph)
    if not isinstance(written, Str):
        raise BadGraph(f"{graph.name} has no valid call signature", got=f"{CALL} is {written!r}")
    try:
        facts = json.loads(written.value)
    except (ValueError, RecursionError) as error:
        raise BadGraph(f"{graph.name} has no valid call signature: {error}") from error
    for name, (is_required, is_valid) in _FIELDS.items():
        if not isinstance(facts, dict) or (name not in facts and is_required):
            raise BadGraph(f"{graph.name} has no valid call signature: {CALL} has no field {name!r}")
        if name in facts and not is_valid(facts[name]):
            raise BadGraph(
                f"{graph.name} has no valid call signature: field {name!r} of {CALL} is malformed",
                got=repr(facts[name])[:200],
            )
    fields: dict[str, Any] = {name: facts[name] for name in _FIELDS if name in facts}
    for name in ("inputs", "unread"):
        fields[name] = [_input(**spec) for spec in facts.get(name, ())]
    return FileSignature(**fields)


def _input(sizes: Sequence[Any] = (), **rest: Any) -> InputSpec:
    return InputSpec(sizes=tuple(sizes), **rest)


def _from_inputs(graph: Graph) -> FileSignature:
    """Use the inputs in order, with the sizes of their descriptors; an unknown size becomes a symbol."""
    inputs: list[InputSpec] = []
    names = [op.name if op.name.isidentifier() else f"input{n}" for n, op in enumerate(graph.inputs)]
    for number, op in enumerate(graph.inputs):
        desc = op.outputs[0].desc
        shape = _logical(desc)
        if shape is None or any(size < -1 for size in shape):
            raise BadGraph(f"input {op.name} of {graph.name} has an unknown rank", got=f"shape {shape}")
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
    """Return the shape of an input. An input in an internal format has it in an attribute."""
    origin = desc.attrs.get("origin_shape")
    return tuple(origin.value) if not desc.shape and isinstance(origin, ListInt) else desc.shape


# Validation of the JSON

Check = Callable[[Any], bool]


def _list_of(is_valid: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _dict_of(is_valid: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(is_valid, value.values()))


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


# Name -> whether the field is required, and the check of its value.
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
