"""What a rule of the user's is, for caches: a compile with another rule must not be served by them.

A function is its code with the values that it has from elsewhere: defaults, variables of the functions around
it, and globals that it names. What is not data makes the rule one that no other process can compare.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from torch.library import CustomOpDef

from torchair.core.fingerprint.python_objects import OWN, data, identity

_FOREIGN = (*OWN, "builtins")


class PatternHash:
    """Its text says what these functions are, when it is asked for; `NotPossible` where one has what is no
    data.
    """

    def __init__(self, *functions: Any) -> None:
        self._functions = functions

    def __repr__(self) -> str:
        seen: set[int] = set()
        return " | ".join(part for function in self._functions for part in _parts(function, seen))


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    if isinstance(value, functools.partial):
        inner: tuple[Any, ...] = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        inner = (value.__func__, value.__self__)
    elif isinstance(value, CustomOpDef):
        inner = (str(value),)  # what it does is found by its name when it runs
    elif isinstance(value, types.FunctionType):
        seen.add(id(value))
        yield from _function(value, seen)
        return
    else:
        yield repr(data(value))
        return
    for each in inner:
        yield from _parts(each, seen)


def _function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield " ".join(identity(function))
    if _is_known(function.__module__):
        return
    reads = inspect.getclosurevars(function) if _has_full_cells(function) else None
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    names = {} if reads is None else {**reads.nonlocals, **reads.globals}
    for value in (*defaults, *(names[name] for name in sorted(names))):
        yield from _parts(value, seen)


def _has_full_cells(function: types.FunctionType) -> bool:
    try:
        return all(cell.cell_contents is not cell for cell in function.__closure__ or ())
    except ValueError:  # a variable that is not assigned yet
        return False


def _is_known(module: str | None) -> bool:
    """Is it known by the version of what it belongs to?"""
    top = str(module).partition(".")[0]
    return top in _FOREIGN or top in sys.stdlib_module_names - {"__main__"}
