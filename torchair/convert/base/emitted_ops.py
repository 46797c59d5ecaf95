"""Determine which GE ops a converter can emit, from its code.

The ops page uses it, and code that needs to know on which kernels a converter depends.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from torchair import ge
from torchair.convert.base import registry
from torchair.ge.builder.build import is_op

CONVERTERS = "torchair.convert"
# Operand rules (casts, constants, sizes) are common to all converters: listed only if nothing else is.
SHARED = "torchair.convert.base.operands"


def emitted_ops(fn: Any) -> list[str]:
    """Return the sorted names of ops that `fn`, its closure and the converter functions it calls mention."""
    return sorted(set(_ops(fn, {SHARED})) or set(_ops(fn, set())))


def emitted_by_target() -> dict[Any, list[str]]:
    """Map every FX target with a built-in converter to the ops of that converter."""
    return {
        target: emitted_ops(next(row.fn for row in registry.candidates(target) if not row.from_user))
        for target in registry.builtin_targets()
    }


def _ops(value: Any, seen: set[Any]) -> Iterator[str]:
    """Yield the ops in a value: `ge.Name` is a partial of the builder; functions, closures and tables are
    searched.

    `seen` has what need not be searched: objects by id, modules by name.
    """
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, functools.partial):
        yield from (arg for arg in value.args if isinstance(arg, str) and is_op(arg))
    elif isinstance(value, FunctionType):
        if value.__module__.startswith(CONVERTERS) and value.__module__ not in seen:
            yield from _ops_of_function(value, seen)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _ops(item, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _ops(item, seen)


def _ops_of_function(fn: FunctionType, seen: set[Any]) -> Iterator[str]:
    names = set(_names(fn.__code__))
    if "ge" in names:
        # A user may have declared an op `Tensor`: in converters the name means the class.
        types = {name for name in names if isinstance(vars(ge).get(name), type)}
        yield from (name for name in names - types if name[0].isupper() and is_op(name))
    values = [fn.__globals__[name] for name in names if name in fn.__globals__]
    values += [cell.cell_contents for cell in fn.__closure__ or ()]
    values += [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    for value in values:
        yield from _ops(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    """Yield global and attribute names, those of inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
