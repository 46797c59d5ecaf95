"""Identify Python objects across processes: modules, classes, functions, and code that was traced. Dynamo
identifies them by address.

A function is identified by its qualified name and the digest of its code in memory, because its file may have
changed after the import. Code of nested functions is found among the constants of the functions around them.
A class is identified by its qualified name and the digest of all its bases.
"""

from __future__ import annotations

import abc
import collections
import dis
import enum
import functools
import hashlib
import inspect
import itertools
import re
import sys
import types
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchair.core.errors import NotPossible

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
BY_TEXT = (torch.dtype, torch.device, torch.layout, torch.memory_format)
BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
KEYS = type({}.keys()) | type({}.values())
OWN = ("torch", "torchair")
"""Packages whose sources are identified as a whole, by version or digest."""
PYTHONS = sys.stdlib_module_names - {"__main__"}
FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)
"""Function-like attributes of a class."""
GLOBAL_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_DEEPEST = 8


def identity(value: Any) -> tuple[str, ...]:
    """Return what identifies a value in another process.

    Raises:
        NotPossible: if nothing identifies it.
    """
    if isinstance(value, (*PLAIN, *BY_TEXT)):
        return (type(value).__name__, repr(value))
    if isinstance(value, enum.Enum):
        return ("enum", *_name(type(value)), value.name)
    if isinstance(value, re.Pattern):
        return ("pattern", str(value.flags), repr(value.pattern))
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    if isinstance(value, type):
        return ("class", *_name(value), class_digest(value))
    if isinstance(value, types.FunctionType):
        return ("function", *_name(value), code_digest(value.__code__))
    if isinstance(value, types.CodeType):
        return ("code", qualified(value), code_digest(value))
    if isinstance(value, types.MethodType):
        return ("method", *identity(value.__func__))
    if isinstance(value, BUILT_IN):
        return ("built-in", str(getattr(value, "__module__", "")), value.__qualname__)
    if hasattr(value, "_schema") or hasattr(value, "_qualified_op_name"):
        return ("operator", str(value))
    raise NotPossible(
        f"an object of class {type(value).__module__}.{type(value).__qualname__} cannot be serialized"
    )


def behaviour(value: Any) -> tuple[Any, ...]:
    """Return what determines the behavior of a function in another process: its code, its defaults, and the
    values it reads from its globals and closure.

    Raises:
        NotPossible: if that cannot be determined.
    """
    return _behaviour(value, getattr(value, "__module__", None), frozenset())


def _behaviour(value: Any, module: str | None, inside: frozenset[int]) -> tuple[Any, ...]:
    """Functions of other modules than the first one's are identified by their code only."""
    if not isinstance(value, types.FunctionType):
        return data(value)
    is_own = str(value.__module__).partition(".")[0] in OWN
    if is_own or value.__module__ != module or id(value) in inside:
        return identity(value)
    inside |= {id(value)}
    names = {name for code in _nested(value.__code__) for name in code.co_names}
    read = {name: value.__globals__[name] for name in sorted(names) if name in value.__globals__}
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    read |= {name: cell.cell_contents for name, cell in cells if _is_full(cell)}
    read |= {"": value.__defaults__, **(value.__kwdefaults__ or {})}
    encoded = ((name, _behaviour(each, module, inside)) for name, each in read.items())
    return (*identity(value), *encoded)


def data(value: Any) -> tuple[Any, ...]:
    """Return what makes a value equal in another process: its type and everything it contains.

    Raises:
        NotPossible: if that cannot be determined.
    """
    kind = type(value)
    if isinstance(value, dict):
        return (_kind(kind), *((data(key), data(item)) for key, item in value.items()))
    if isinstance(value, set | frozenset):
        return (_kind(kind), *sorted(map(data, value), key=repr))
    if isinstance(value, list | tuple | collections.deque | KEYS):
        return (_kind(kind), *map(data, value))
    if isinstance(value, slice):
        return (_kind(kind), *map(data, (value.start, value.stop, value.step)))
    if isinstance(value, range):
        return (_kind(kind), value.start, value.stop, value.step)
    if isinstance(value, enum.Enum):
        return identity(value)
    if isinstance(value, np.generic | np.dtype):
        return (_kind(kind), repr(value))
    for base in (bool, int, float, complex, str, bytes):  # user-defined subclasses of numbers and text
        if isinstance(value, base) and kind is not base:
            show: Any = base.__repr__  # not the one of the subclass
            return (_kind(kind), show(value))
    return identity(value)


def _kind(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _name(value: Any) -> tuple[str, str]:
    return str(value.__module__), value.__qualname__


def code_digest(code: types.CodeType) -> str:
    """Return the digest of what the code does, independent of its position in the file."""
    digest = hashlib.sha256()
    for text in _texts(code):
        digest.update(text)
        digest.update(b"\0")
    return digest.hexdigest()


def _texts(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield getattr(code, "co_exceptiontable", b"")
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield repr((code.co_name, counts, names)).encode()
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _texts(value)
        else:
            yield _constant(value).encode()


def _constant(value: Any) -> str:
    """Return the text of a constant. Sets are sorted, because their order differs between processes."""
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"


def class_digest(kind: type) -> str:
    """Return the digest of a class and its bases, in their order: the behavior of their functions, including
    the values these read from around them. Attributes are checked where they are read. Members of an enum,
    attributes of the metaclass and registered subclasses are included. The digest is empty for unpatched
    classes of torchair and Python. Classes of torch are included, because users patch them.
    """
    if all(map(_is_versioned, inspect.getmro(kind))):
        return ""
    rows = [*_name(kind)]
    for each in (*inspect.getmro(kind), *inspect.getmro(type(kind))):
        rows += _name(each) if _is_versioned(each) else (*_name(each), _functions_digest(each))
    for each in itertools.filterfalse(_is_versioned, inspect.getmro(type(kind))):
        rows += [f"{name} {value!r}" for name, value in vars(each).items() if isinstance(value, PLAIN)]
    if isinstance(kind, abc.ABCMeta):
        registered = abc._get_dump(kind)[0]  # pyright: ignore[reportAttributeAccessIssue]
        rows += sorted(" ".join(_name(found)) for each in registered if (found := each()))
    if issubclass(kind, enum.Enum):
        rows += [f"{name} {_encode(member.value)}" for name, member in kind.__members__.items()]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


_digests: weakref.WeakKeyDictionary[type, tuple[list[Any], str]] = weakref.WeakKeyDictionary()
"""Digests of the functions of a class (which may have hundreds), with the names and functions they were
computed from.
"""


def _functions_digest(kind: type) -> str:
    functions = [(name, each) for name, each in vars(kind).items() if isinstance(each, FUNCTIONS)]
    now = [part for name, each in functions for part in (name, *_inner(each))]
    known, digest = _digests.get(kind, ((), ""))
    if not known or now != [part if isinstance(part, str) else part() for part in known]:
        functions.sort(key=itemgetter(0))
        rows = [" ".join((name, *_function_texts(each))) for name, each in functions]
        digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()
        # Weak references: the functions would keep the class alive.
        _digests[kind] = [part if isinstance(part, str) else weakref.ref(part) for part in now], digest
    return digest


def _inner(value: Any) -> list[types.FunctionType]:
    """Return the functions that an attribute of a class consists of."""
    if isinstance(value, types.FunctionType):
        return [value]
    if not isinstance(value, FUNCTIONS):
        return []
    names = ("__func__", "fget", "fset", "fdel", "func")
    return [inner for name in names for inner in _inner(getattr(value, name, None))]


def _function_texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the code of a function of a class, its defaults, and the contents of its closure."""
    if not isinstance(value, types.FunctionType):
        yield from (text for each in _inner(value) for text in _function_texts(each, depth))
        return
    yield code_digest(value.__code__)
    cells = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
    named = sorted((value.__kwdefaults__ or {}).items())
    for each in (*(value.__defaults__ or ()), *itertools.chain.from_iterable(named), *cells):
        if isinstance(each, types.FunctionType) and depth < _DEEPEST:
            yield from _function_texts(each, depth + 1)
        else:
            yield _encode(each)


def _encode(value: Any) -> str:
    """Return a text for a value as far as it is the same in another process. Classes are identified by name,
    because they may contain the value.
    """
    if isinstance(value, type):
        return _kind(value)
    if isinstance(value, dict):
        return f"{_kind(type(value))} {[(_encode(key), _encode(each)) for key, each in value.items()]}"
    if isinstance(value, set | frozenset):
        return f"{_kind(type(value))} {sorted(map(_encode, value))}"
    if isinstance(value, list | tuple):
        return f"{_kind(type(value))} {list(map(_encode, value))}"
    try:
        return " ".join(identity(value))
    except NotPossible:
        return _kind(type(value))


def _is_versioned(kind: type) -> bool:
    """Return True for a class of torchair, and for a class of Python that contains only its own functions.
    The digest of the package, or the version of Python, identifies such a class.
    """
    top = _top(kind.__module__)
    return top == "torchair" or (top in PYTHONS and not _is_patched(kind))


def _is_patched(kind: type) -> bool:
    """Return True for a class of Python that contains a function of another package."""
    functions = (
        inner for each in vars(kind).values() if isinstance(each, FUNCTIONS) for inner in _inner(each)
    )
    return any(_top(each.__globals__.get("__name__")) not in PYTHONS for each in functions)


def _top(module: Any) -> str:
    return str(module).partition(".")[0]


@dataclass(frozen=True)
class TracedSources:
    """Code that was traced: its location and its digest."""

    module: str
    name: str
    digest: str
    file: str = ""
    """The file, if no function of the module contains the code. The digest is then that of the file's
    content.
    """
    absent: tuple[str, ...] = ()
    """Global names that the code reads and its module does not have: they are built-ins of Python."""

    def why_other(self) -> str | None:
        """Return why this process has other code there, or None if it has the same."""
        title = f"{self.module}.{self.name}"
        names = vars(sys.modules[self.module]) if self.module in sys.modules else {}
        if hidden := [name for name in self.absent if name in names]:
            return f"{self.module} has a global {hidden[0]}, which {title} reads"
        if self.file:
            return None if _file_digest(self.file) == self.digest else f"{self.file} ({title}) has changed"
        found = [code_digest(code) for code in _codes(self.module, self.name)]
        if self.digest in found:
            return None
        return f"{title} has changed" if found else f"{title} does not exist"


def traced(codes: Sequence[types.CodeType]) -> tuple[TracedSources, ...]:
    """Return the locations of these codes.

    Raises:
        NotPossible: if the source of one is not found.
    """
    modules = {str(module.__file__): name for name, module in _modules() if getattr(module, "__file__", None)}
    places = {(modules.get(code.co_filename, ""), code): None for code in codes}
    rows = [
        (module, code)
        for module, code in places
        if module.partition(".")[0] not in OWN and not _is_of_python(module, code)
    ]
    generated = [code for _, code in rows if code.co_filename.startswith("<")]
    owners = _owners(generated) if generated else {}
    return tuple(_traced(*owners.get(code, (module, qualified(code))), code) for module, code in rows)


def _owners(codes: Sequence[types.CodeType]) -> dict[types.CodeType, tuple[str, str]]:
    """Map code that is in no file to module and name of its method. Dataclasses and named tuples generate
    such methods.
    """
    wanted, names = set(codes), {code.co_name for code in codes} | {"__new__"}
    found = dict[types.CodeType, tuple[str, str]]()
    for kind in _classes(object, set()):
        own = type.__dict__["__dict__"].__get__(kind)  # a metaclass may override `vars(kind)`
        for name in names & own.keys():
            code = getattr(getattr(own[name], "__func__", own[name]), "__code__", None)
            if code in wanted:
                found[code] = (kind.__module__, f"{kind.__qualname__}.{name}")
    return found


def _classes(kind: type, seen: set[type]) -> Iterator[type]:
    for each in type.__subclasses__(kind):
        if each not in seen:
            seen.add(each)
            yield each
            yield from _classes(each, seen)


def _modules() -> list[tuple[str, types.ModuleType]]:
    # The main script comes last, so that its own name wins.
    return sorted(sys.modules.items(), key=lambda item: item[0] == "__main__")


def _is_of_python(module: str, code: types.CodeType) -> bool:
    """Return whether the version of Python identifies the code."""
    return module.partition(".")[0] in PYTHONS or code.co_filename.startswith("<frozen")


def _traced(module: str, name: str, code: types.CodeType) -> TracedSources:
    digest = code_digest(code)
    absent = _absent(module, code)
    if module and any(code_digest(found) == digest for found in _codes(module, name)):
        return TracedSources(module, name, digest, absent=absent)
    content = _file_digest(code.co_filename)
    if content is None or digest not in _digests_in(code.co_filename, content):
        raise NotPossible(
            f"the source of {name} was not found: {code.co_filename} does not contain it or has changed",
            next="define it in a module, and restart the process after changes",
        )
    return TracedSources(module, name, content, code.co_filename, absent)


def _absent(module: str, code: types.CodeType) -> tuple[str, ...]:
    """Return the global names that the code reads and its module does not have."""
    if module not in sys.modules:
        return ()
    read = {each.argval for each in dis.get_instructions(code) if each.opname in GLOBAL_READS}
    return tuple(sorted(read - vars(sys.modules[module]).keys()))


def qualified(code: types.CodeType) -> str:
    """Return the qualified name (`Model.forward`). Python 3.10 has only the last part."""
    return str(getattr(code, "co_qualname", code.co_name))


def _codes(module: str, name: str) -> Iterator[types.CodeType]:
    """Yield the code of the object with this name in the module, and of all functions nested in it."""
    value: Any = sys.modules.get(module)
    outer = name.partition(".<locals>")[0]
    for part in outer.split("."):
        # The functions in the class's own namespace, unbound.
        value = vars(value).get(part) if hasattr(value, "__dict__") else None
    for code in codes_inside(value):
        yield from _nested(code)


def codes_inside(value: Any, depth: int = 0) -> Iterator[types.CodeType]:
    """Yield the code of a function, of the functions it wraps, and of the functions of a property."""
    if value is None or depth > _DEEPEST:
        return
    if isinstance(value, types.FunctionType):
        yield value.__code__
        cells = value.__closure__ or ()
        contents = [cell.cell_contents for cell in cells if _is_full(cell)]
        inner = [each for each in contents if isinstance(each, types.FunctionType)]
    else:
        inner = [getattr(value, name, None) for name in ("__func__", "fget", "fset", "func", "__code__")]
        if isinstance(value, types.CodeType):
            yield value
            return
    for each in (*inner, getattr(value, "__wrapped__", None)):
        yield from codes_inside(each, depth + 1)


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - empty ones raise
    except ValueError:
        return False
    return True


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _nested(value)


def _file_digest(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


@functools.lru_cache(maxsize=64)
def _digests_in(path: str, content: str) -> frozenset[str]:
    """Return the digests of all code in a file with this content."""
    try:
        whole = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(map(code_digest, _nested(whole)))
