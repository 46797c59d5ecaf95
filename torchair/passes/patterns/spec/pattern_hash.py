"""Hash a user's rule for caches: a compile with another rule must not use their entries.

A function is its code with the values that it uses: defaults, variables of enclosing functions, and globals
that it names. A value that is not data makes the rule one that no other process can compare.
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
    """Compute the text that identifies these functions, on demand; raise `NotPossible` for values without
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
        inner = (str(value),)  # its behavior is looked up by name at run time
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
    """Return whether the module is identified by the version of its package."""
    top = str(module).partition(".")[0]
    return top in _FOREIGN or top in sys.stdlib_module_names - {"__main__"}
