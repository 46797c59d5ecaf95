"""Check the arguments of `register_replacement` and normalize them.

The normal form is two functions of the same positional parameters that return a tensor or a tuple of tensors,
and an example for each parameter. A parameter whose example is a number is a wildcard, as are those of
`scalar_workaround`. A parameter whose example is None, a bool, a text or a dtype is a constant of the
pattern, as is one that has a default and no example.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchair.core.errors import BadOptionType, BadPass
from torchair.core.torch_private.compilers.pattern_matcher import is_pattern
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, tree_flatten, tree_leaves, tree_map

Function = Callable[..., Any]
NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_NAMELESS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class UserPattern:
    """Hold a rule as it was given. `find` and `put` take the values of `names`, in order."""

    name: str
    find: Function
    put: Function
    names: tuple[str, ...]
    inputs: tuple[Any, ...]  # examples of non-scalar parameters
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def examples(self) -> list[Any]:
        """Return one example per name."""
        rest = iter(self.inputs)
        return [self.scalars[name] if name in self.scalars else next(rest) for name in self.names]

    @property
    def kinds(self) -> list[bool]:
        """Return, for each value inside the examples, whether it is a tensor."""
        return [isinstance(leaf, torch.Tensor) for leaf in tree_leaves(self.examples)]


def given(
    search_fn: Function,
    replace_fn: Function,
    example_inputs: Any,
    scalar_workaround: Mapping[str, float] | None,
) -> UserPattern:
    """Return the normalized rule, or raise an error that describes its fault."""
    name = name_of(search_fn)
    parameters = _parameters(search_fn, name)
    scalars = _scalars(scalar_workaround, parameters, name)
    values = _values(parameters, example_inputs, scalars, name)
    _check_kinds(values, name)
    scalars = _wildcards(scalars | {key: v for key, v in values.items() if _is_number(v)}, name)
    names = tuple(key for key, value in values.items() if not _is_constant(value))
    inputs = tuple(values[key] for key in names if key not in scalars)
    if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(list(inputs))):
        raise BadPass(
            f"the pattern {name} has no tensor parameter",
            got=str(list(values.values())),
            next="make each tensor of the pattern a parameter, and give an example of it",
        )
    constants = {key: value for key, value in values.items() if key not in names}
    put = _positional(replace_fn, names, constants, f"replace_fn of {name}")
    find = _positional(search_fn, names, constants, f"search_fn {name}")
    return UserPattern(name, find, put, names, inputs, scalars)


def check_callables(search_fn: Any, replace_fn: Any, trace_fn: Any, extra_check: Any, pattern: Any) -> None:
    """Raise if an argument is not a function or not a pattern."""
    functions = {
        "search_fn": search_fn,
        "replace_fn": replace_fn,
        "trace_fn": trace_fn,
        "extra_check": extra_check,
    }
    for name, value in functions.items():
        if not callable(value):
            raise BadOptionType(f"{name} of register_replacement must be a function", got=_shown(value))
    if pattern is not None and not is_pattern(pattern):
        raise BadOptionType(
            "search_fn_pattern must be a pattern of torch's pattern matcher, or None", got=_shown(pattern)
        )


def check_flag(name: str, value: Any) -> None:
    """Raise if the value is neither True nor False."""
    if not isinstance(value, bool):
        raise BadOptionType(f"{name} of register_replacement must be a bool", got=_shown(value))


def name_of(function: Any) -> str:
    """Return the display name of a rule."""
    return str(getattr(function, "__name__", type(function).__name__))


def _shown(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


def _parameters(search_fn: Function, name: str) -> dict[str, inspect.Parameter]:
    try:
        found = dict(inspect.signature(search_fn).parameters)
    except ValueError as error:
        raise BadPass(
            f"the parameters of search_fn {name} cannot be read", next="wrap it: lambda x: ..."
        ) from error
    nameless = [str(p) for p in found.values() if p.kind in _NAMELESS]
    if nameless:
        raise BadPass(
            f"search_fn {name} has *args or **kwargs",
            got=", ".join(nameless),
            next="name each value that the pattern takes as a parameter",
        )
    return found


def _scalars(asked: Any, parameters: Mapping[str, Any], name: str) -> dict[str, float]:
    if asked is None:
        return {}
    if not isinstance(asked, Mapping):
        raise BadOptionType("scalar_workaround must map parameters to numbers", got=_shown(asked))
    for key, value in asked.items():
        if key not in parameters:
            raise BadPass(
                f"scalar_workaround names {key!r}, which is not a parameter of search_fn {name}",
                near=f"the parameters are {', '.join(parameters)}",
            )
        if not _is_number(value):
            raise BadOptionType(f"scalar_workaround[{key!r}] must be a number", got=_shown(value))
    return dict(asked)


def _check_kinds(values: Mapping[str, Any], name: str) -> None:
    for key, value in values.items():
        if any(isinstance(leaf, complex) for leaf in tree_leaves(value)):
            raise BadPass(
                f"the example of {key} of the pattern {name} is a complex number, which cannot be a wildcard",
                got=repr(value),
                next="write it into search_fn, as a constant of the pattern",
            )


def _wildcards(scalars: dict[str, float], name: str) -> dict[str, float]:
    """Check that no two wildcards share a value: numbers in a pattern are known by their values."""
    known: dict[float, str] = {}
    for key, value in scalars.items():
        if math.isnan(value):
            raise BadPass(
                f"the example of {key} of the pattern {name} is nan, which equals no number",
                next="choose another number: the example stands for any number",
            )
        if value in known:
            raise BadPass(
                f"the numbers {known[value]} and {key} of the pattern {name} are both {value!r}",
                next="give each a value that no other number of the pattern has",
            )
        known[value] = key
    return scalars


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_constant(value: Any) -> bool:
    is_data = value is None or isinstance(
        value, bool | str | torch.dtype | torch.device | torch.memory_format
    )
    return is_data or not tree_leaves(value)


def _values(
    parameters: Mapping[str, inspect.Parameter], given: Any, scalars: Mapping[str, float], name: str
) -> dict[str, Any]:
    """Return the example of each parameter that has one, in their order."""
    if isinstance(given, Mapping):
        return _by_name(parameters, given, scalars, name)
    if isinstance(given, torch.Tensor | str) or not isinstance(given, Iterable):
        raise BadOptionType("example_inputs must be a list or a tuple", got=type(given).__name__)
    inputs = list(given)
    wanted = [key for key in parameters if key not in scalars]
    if scalars and len(inputs) == len(parameters):  # some users pass them here, too
        inputs = [value for key, value in zip(parameters, inputs, strict=True) if key not in scalars]
    if len(inputs) > len(wanted) and len(inputs) <= len(parameters):
        inputs = inputs[: len(wanted)]
    missing = [key for key in wanted[len(inputs) :] if parameters[key].default is inspect.Parameter.empty]
    if len(inputs) > len(wanted) or missing:
        raise BadPass(
            f"search_fn {name} takes {len(wanted)} examples, and example_inputs has {len(inputs)}",
            got=f"parameters {', '.join(parameters)}" + (f"; scalars {', '.join(scalars)}" * bool(scalars)),
            next=f"add an example for {', '.join(missing)}" if missing else "remove the extra examples",
        )
    found = dict(zip(wanted, inputs, strict=False)) | dict(scalars)
    return {key: found[key] for key in parameters if key in found}


def _by_name(
    parameters: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    scalars: Mapping[str, float],
    name: str,
) -> dict[str, Any]:
    found = {**given, **scalars}
    unknown = [key for key in given if key not in parameters]
    missing = [
        key for key, p in parameters.items() if key not in found and p.default is inspect.Parameter.empty
    ]
    if unknown or missing:
        raise BadPass(
            f"example_inputs does not match the parameters of search_fn {name}",
            got=f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(map(str, unknown))}",
            near=f"the parameters are {', '.join(parameters)}",
        )
    return {key: found[key] for key in parameters if key in found}


def _positional(fn: Function, names: Sequence[str], constants: Mapping[str, Any], title: str) -> Function:
    """Return a function of the values of `names` that also passes the constants of the rule."""
    try:
        own = dict(inspect.signature(fn).parameters)
    except ValueError:  # some functions in C have no signature
        return _signed(lambda *values: _flat(fn(*values)), names)
    named = {key for key, p in own.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    takes_rest = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own.values())
    extra = {key: value for key, value in constants.items() if key in own or takes_rest}

    def split(values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        by_name = dict(zip(names, values, strict=True))
        ordered = [value for key, value in by_name.items() if key not in named]
        # Arguments after a constant are passed by name: their position may differ.
        remaining = {key: by_name[key] for key in names if key in named}
        return ordered, remaining

    def run(*values: Any) -> Any:
        ordered, remaining = split(values)
        return _flat(_bound(fn, own, ordered, remaining, extra))

    _check_arity(fn, own, *split(names), extra, title)
    return _signed(run, names)


def _arguments(
    own: Mapping[str, inspect.Parameter],
    ordered: Sequence[Any],
    named: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """Fill the parameters that no constant has with the positional values."""
    free = [key for key, p in own.items() if p.kind not in (*_NAMELESS, inspect.Parameter.KEYWORD_ONLY)]
    args: list[Any] = []
    rest = list(ordered)
    for key in free:
        if key in extra:
            args.append(extra[key])
        elif rest:
            args.append(rest.pop(0))
        else:
            break
    left = {key: value for key, value in extra.items() if key not in free[: len(args)]}
    return args + rest, {**named, **left}


def _bound(
    fn: Function,
    own: Mapping[str, inspect.Parameter],
    ordered: Sequence[Any],
    named: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> Any:
    args, kwargs = _arguments(own, ordered, named, extra)
    return fn(*args, **kwargs)


def _check_arity(
    fn: Function,
    own: Mapping[str, inspect.Parameter],
    ordered: Sequence[Any],
    named: Mapping[str, Any],
    extra: Mapping[str, Any],
    title: str,
) -> None:
    args, kwargs = _arguments(own, ordered, named, extra)
    try:
        inspect.signature(fn).bind(*args, **kwargs)
    except TypeError as error:
        raise BadPass(
            f"{title} does not take the values of the pattern: {error}",
            got=f"({', '.join(own)})",
            next=f"it is called with {', '.join([*map(str, ordered), *named])}, in this order",
        ) from error


def _signed(function: Function, names: Sequence[str]) -> Function:
    """Give the function a signature, from which the matcher reads names."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

    def run(*values: Any) -> Any:
        return function(*values)

    run.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return run


def _flat(made: Any) -> Any:
    """Return a tensor, or a tuple of tensors, from any container."""
    leaves = tree_leaves(made)
    return leaves[0] if len(leaves) == 1 else tuple(leaves)


# Examples


def examples_like(inputs: Sequence[Any], dtype: torch.dtype | None = None) -> list[Any]:
    """Return fake tensors like these, each distinct, with another float dtype if `dtype` is given.

    One tensor for two arguments would create a pattern in which both are the same.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def make(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided or value.is_quantized:
            return mode.from_tensor(value)
        wanted = dtype if dtype is not None and value.dtype.is_floating_point else value.dtype
        with mode:
            return torch.empty_strided(
                [int(size) for size in value.shape],
                [int(step) for step in value.stride()],
                dtype=wanted,
                device=value.device,
                requires_grad=value.requires_grad,
            )

    return [tree_map(make, value) for value in inputs]


def has_floats(inputs: Sequence[Any]) -> bool:
    """Return whether there is a float tensor, whose dtype could be changed."""
    leaves, _ = tree_flatten(list(inputs))
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point for leaf in leaves)
