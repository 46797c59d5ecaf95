"""Record reads of a trace for which Dynamo installs no guard; `guards.py` compares them again.

Dynamo assumes that some things do not change while a process runs, and reads them without a guard:
- values of a `SkipGuardSource`: the globals of Python's own modules (so everything that `os.getenv` reads),
  `__annotations__`, and objects of `inspect`;
- missing keys of a dictionary, if the lookup raises KeyError or returns a default;
- attributes of modules, classes and functions that are absent, or that are constants without a source;
- the names that `dir` and `vars` list, and those in the `__dict__` of an object;
- the order of a set of strings, which differs in each process;
- Python's own names that are constants: a program may add one to `builtins`;
- results of functions that Dynamo calls while it traces: `torch.get_default_dtype`, `hash` (which differs in
  each process), `sys.getrecursionlimit`, `importlib.metadata.version`.

Each of them can differ in another process.
"""

# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import builtins
import importlib.metadata
import importlib.util
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._dynamo import guards as dynamo_guards
from torch._dynamo.exc import ObservedException
from torch._dynamo.source import is_from_skip_guard_source
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import builtin
from torch._dynamo.variables import torch as torch_variables
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.functions import PolyfilledFunctionVariable, SkipFunctionVariable

try:
    from torch._dynamo.variables.sets import SetVariable
except ImportError:  # before torch 2.13
    from torch._dynamo.variables.dicts import SetVariable

from torchair.core.errors import NotPossible
from torchair.core.fingerprint.python_objects import OWN, PLAIN, PYTHONS, data

Given = tuple[tuple[str, Any], ...]
ORDER = "the order of a set"
"""A string whose hash identifies the seed of all hashes (`PYTHONHASHSEED`)."""
LOOKUPS = {"__contains__", "__getitem__", "get", "pop", "setdefault"}
"""Methods of a dictionary that look up a key."""
PURE: set[Any] = {
    torch._assert,
    torch.is_complex,
    torch.is_floating_point,
    torch.promote_types,
    torch._utils._get_device_index,
    torch.nn._reduction.get_enum,
}
"""Functions that Dynamo calls while it traces, and whose results depend only on their arguments."""
BUILT_IN_FIELDS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType)
"""Attributes that C code computes, as `__annotations__` of a function and `__flags__` of a class."""


Read = tuple[Any, str, Given]
"""A source, a kind (a row of `READS`), and its arguments."""
Call = tuple[Any, tuple[Any, ...], Given]
"""A function and its arguments."""


@dataclass
class Reads:
    """The unguarded reads of a trace so far, in order."""

    rows: dict[Read, str] = field(default_factory=dict[Read, str])
    """Maps each read to its line in the program."""
    calls: dict[Call, tuple[Any, str]] = field(default_factory=dict[Call, tuple[Any, str]])
    """Maps each function called while tracing to its result and its line."""

    def add(self, tx: Any, of: VariableTracker, kind: str, **given: Any) -> None:
        """Record a read of an object that also exists in another process."""
        if of.source is not None:
            self.rows.setdefault((of.source, kind, tuple(given.items())), _line(tx))

    def add_call(self, tx: Any, function: Any, args: tuple[Any, ...], result: Any, *named: Any) -> None:
        """Record a call that Dynamo executed."""
        self.calls.setdefault((function, args, named), (result, _line(tx)))


def _line(tx: Any) -> str:
    """Return the current line of the traced code."""
    return f"{tx.f_code.co_filename}:{tx.lineno}"


@contextmanager
def recorded_reads() -> Iterator[Reads]:
    """Record the reads of a trace in this context. Guards that Dynamo omits are installed."""
    reads = Reads()
    with (
        mock.patch.object(dynamo_guards, "is_from_skip_guard_source", _install_all),
        mock.patch.object(ConstDictVariable, *_lookup(reads)),
        mock.patch.object(ConstDictVariable, *_dict_method(reads)),
        mock.patch.object(InstructionTranslatorBase, *_builtin_constant(reads)),
        mock.patch.object(SkipFunctionVariable, *_package(reads)),
        mock.patch.object(PolyfilledFunctionVariable, *_polyfill(reads)),
        mock.patch.object(torch_variables.TorchInGraphFunctionVariable, *_torch_function(reads)),
        ExitStack() as stack,
    ):
        for name in {"unpack_var_sequence", "tp_iter_impl"} & vars(SetVariable).keys():
            stack.enter_context(mock.patch.object(SetVariable, *_iteration(name, reads)))
        for kind in _builtin_kinds():
            stack.enter_context(mock.patch.object(kind, *_builtin(kind, reads)))
        yield reads


def _install_all(source: Any) -> bool:
    """Replace Dynamo's test for sources that need no guard."""
    return False


def is_left_out(guard: Any) -> bool:
    """Return whether Dynamo itself does not install this guard."""
    return is_from_skip_guard_source(guard.originating_source)


def _lookup(reads: Reads) -> tuple[str, Callable[..., Any]]:
    name = "getitem_const_raise_exception_if_absent"
    own = getattr(ConstDictVariable, name)

    def lookup(table: Any, tx: Any, key: Any) -> Any:
        _add_key(reads, tx, table, key)
        return own(table, tx, key)

    return name, lookup


def _dict_method(reads: Reads) -> tuple[str, Callable[..., Any]]:
    own = ConstDictVariable.call_method

    def call_method(table: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in LOOKUPS and args:
            _add_key(reads, tx, table, args[0])
        return own(table, tx, name, args, kwargs)

    return "call_method", call_method


def _add_key(reads: Reads, tx: Any, table: Any, key: Any) -> None:
    if key.is_python_constant() and isinstance(constant := key.as_python_constant(), PLAIN):
        reads.add(tx, table, "HAS_KEY", key=constant)


def _builtin_kinds() -> list[Any]:
    """Return the classes that call built-in functions: torch 2.13 has a separate one for `getattr`."""
    found = [each for each in vars(builtin).values() if isinstance(each, type)]
    return [each for each in found if each.__module__ == builtin.__name__ and "call_function" in vars(each)]


def _builtin(kind: Any, reads: Reads) -> tuple[str, Callable[..., Any]]:
    own = kind.call_function

    def call_function(function: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        called = function.as_python_constant()
        if called in (id, hash):
            result = own(function, tx, args, kwargs)
            if isinstance(result, ConstantVariable) and not _is_library(tx.f_globals):
                given = tuple(map(_constant_or_object, args))
                reads.add_call(tx, called, given, result.as_python_constant())
            return result
        if called in (dir, vars) and args:
            reads.add(tx, args[0], "NAMES" if called is dir else "OWN_NAMES")
        if called not in (getattr, hasattr) or len(args) < 2 or not args[1].is_python_constant():
            return own(function, tx, args, kwargs)
        of, name = args[0], args[1].as_python_constant()
        if name == "__dict__" and not _is_of_torch(tx.f_globals):
            reads.add(tx, of, "OWN_NAMES")
        try:
            result = own(function, tx, args, kwargs)
        except ObservedException:
            reads.add(tx, of, "HAS_ATTRIBUTE", attr=name)
            raise
        if called is hasattr or len(args) > 2:
            reads.add(tx, of, "HAS_ATTRIBUTE", attr=name)
        elif _is_unguarded(of, result):
            reads.add(tx, of, "ATTRIBUTE", attr=name)
        return result

    return "call_function", call_function


def _builtin_constant(reads: Reads) -> tuple[str, Callable[..., Any]]:
    own = InstructionTranslatorBase.load_builtin_from_argval

    def load(tx: Any, name: str) -> Any:
        result = own(tx, name)
        if not callable(value := tx.f_builtins[name]):  # functions and classes have guards
            reads.add_call(tx, builtin_constant, (name,), value)
        return result

    return "load_builtin_from_argval", load


def builtin_constant(name: str) -> Any:
    """Return the value of a built-in name."""
    return vars(builtins)[name]


def _is_library(variables: dict[str, Any]) -> bool:
    """Return whether this is code of torch or Python, which uses `id` and `hash` only for lookups."""
    return _is_of_torch(variables) or _package_of(variables) in PYTHONS


def _is_of_torch(variables: dict[str, Any]) -> bool:
    return _package_of(variables) in OWN


def _package_of(variables: dict[str, Any]) -> str:
    return str(variables.get("__name__")).partition(".")[0]


def _constant_or_object(variable: Any) -> Any:
    return variable.as_python_constant() if isinstance(variable, ConstantVariable) else object


def _polyfill(reads: Reads) -> tuple[str, Callable[..., Any]]:
    own = PolyfilledFunctionVariable.call_function

    def call_function(function: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        result = own(function, tx, args, kwargs)
        # A folded function without arguments reads the state of the process.
        is_folded = function.can_constant_fold_through() and isinstance(result, ConstantVariable)
        if is_folded and not args and not kwargs:
            reads.add_call(tx, function.fn, (), result.as_python_constant())
        return result

    return "call_function", call_function


def _package(reads: Reads) -> tuple[str, Callable[..., Any]]:
    own = SkipFunctionVariable.call_function

    def call_function(function: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        result = own(function, tx, args, kwargs)
        if function.value in (importlib.metadata.version, importlib.util.find_spec):
            (name,) = (each.as_python_constant() for each in args)
            of = function.value if function.value is importlib.metadata.version else has_package
            reads.add_call(tx, of, (name,), of(name))
        return result

    return "call_function", call_function


def _iteration(name: str, reads: Reads) -> tuple[str, Callable[..., Any]]:
    own = getattr(SetVariable, name)

    def iterate(of: Any, tx: Any) -> Any:
        members = list(of.items)
        is_hashed = of.python_type() in (set, frozenset) and len(members) > 1
        if is_hashed and not _is_library(tx.f_globals) and not all(map(_has_own_hash, members)):
            reads.add_call(tx, hash, (ORDER,), hash(ORDER))
        return own(of, tx)

    return name, iterate


def _has_own_hash(member: Any) -> bool:
    """Return whether the member is a number, whose hash is the same in each process."""
    variable = getattr(member, "vt", member)
    return isinstance(variable, ConstantVariable) and isinstance(variable.as_python_constant(), int | float)


def has_package(name: str) -> bool:
    """Return whether a package can be imported."""
    return importlib.util.find_spec(name) is not None


def _is_unguarded(of: Any, result: Any) -> bool:
    """Return whether the result is a constant of a module, class or function without a known source, or may
    come from a metaclass.
    """
    if of.source is None or of.is_tensor():
        return False
    try:
        kind = of.python_type()
    except NotImplementedError:
        return False
    if issubclass(kind, type) and kind is not type:
        return True
    # Dynamo knows the source of `co_argcount` and still omits the guard.
    is_definition = issubclass(kind, (type, types.ModuleType, types.FunctionType)) and result.source is None
    # `isinstance` comes last: it inspects values that Dynamo would inspect later, or never.
    return (is_definition or issubclass(kind, types.CodeType)) and isinstance(result, ConstantVariable)


def _torch_function(reads: Reads) -> tuple[str, Callable[..., Any]]:
    own = torch_variables.TorchInGraphFunctionVariable.call_function

    def call_function(function: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        result = own(function, tx, args, kwargs)
        of, given = function.value, (*args, *kwargs.values())
        is_called = of in torch_variables.constant_fold_functions and of not in PURE
        if is_called and isinstance(result, ConstantVariable) and all(map(_is_constant, given)):
            named = [(name, each.as_python_constant()) for name, each in kwargs.items()]
            constants = tuple(each.as_python_constant() for each in args)
            reads.add_call(tx, of, constants, result.as_python_constant(), *named)
        return result

    return "call_function", call_function


def _is_constant(variable: Any) -> bool:
    return isinstance(variable, ConstantVariable)


def has_key(value: Any, key: Any) -> tuple[Any, ...]:
    """Return whether a dictionary has a key."""
    return (dict.__contains__(value, key) if isinstance(value, dict) else key in value,)


def has_attribute(value: Any, attr: str) -> tuple[Any, ...]:
    """Return whether an object has an attribute; for modules, classes and functions also its constant
    value.
    """
    if isinstance(value, type | types.ModuleType | types.FunctionType):
        return attribute_of(value, attr, needed=False)
    return (hasattr(value, attr),)


def attribute_of(value: Any, attr: str, needed: bool = True) -> tuple[Any, ...]:
    """Return the value of an attribute as data, without running user code.

    A descriptor is identified by its type: the trace has traced its code.

    Raises:
        NotPossible: if the value cannot be serialized and `needed` is True.
    """
    found = inspect.getattr_static(value, attr, value)
    if found is value and isinstance(value, types.ModuleType):
        return ("computed", hasattr(value, attr))
    if found is value:
        return ("absent",)
    if isinstance(found, BUILT_IN_FIELDS):
        found = getattr(value, attr, value)
    elif hasattr(type(found), "__get__"):
        return ("descriptor", f"{type(found).__module__}.{type(found).__qualname__}")
    try:
        return data(found)
    except NotPossible:
        if needed:
            raise
        return ("there", f"{type(found).__module__}.{type(found).__qualname__}")


def names_of(value: Any) -> tuple[Any, ...]:
    """Return what `dir` lists, without the names that Dynamo puts into modules while it traces."""
    names = dir(value)
    if isinstance(value, types.ModuleType):
        names = [name for name in names if not name.startswith("__") or name.endswith("__")]
    return tuple(sorted(names))


def own_names_of(value: Any) -> tuple[Any, ...]:
    """Return the names in the `__dict__` of an object; Dynamo guards those of modules and classes."""
    if isinstance(value, type | types.ModuleType):
        return ("guarded",)
    try:
        return data(tuple(object.__getattribute__(value, "__dict__")))
    except AttributeError:
        return ("absent",)


READS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "HAS_KEY": has_key,
    "HAS_ATTRIBUTE": has_attribute,
    "ATTRIBUTE": attribute_of,
    "NAMES": names_of,
    "OWN_NAMES": own_names_of,
}
"""Functions that return the fact of each kind of read."""
