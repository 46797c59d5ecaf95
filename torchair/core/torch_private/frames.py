"""Dynamo's work on one call as data: the frame's new code, and guards that another process can check.

Guards on values (sizes, numbers, attributes) are written by Dynamo itself. Guards on addresses (functions,
classes, modules) mean nothing elsewhere: they are kept with what the object was (`core/identity.py`), and are
made anew for the objects of the process that loads them, once those have proved to be the same.
"""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import builtins
import dataclasses
import importlib
import io
import itertools
import pickle
import sys
import types
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo import convert_frame, output_graph
from torch._dynamo import guards as dynamo_guards
from torch._dynamo.eval_frame import set_enable_dynamic
from torch._dynamo.exc import PackageError
from torch._dynamo.guards import CheckFunctionManager, GuardsStatePickler, _Missing
from torch._dynamo.output_graph import OutputGraphCommon
from torch._dynamo.package import SerializedCode
from torch._dynamo.utils import dynamo_timed, get_metrics_context
from torch._dynamo.variables.torch_function import torch_function_mode_stack_state_mgr
from torch._guards import CompileContext, GuardsSet, compile_context

from torchair.core.errors import AirError, BadEntry, NotPossible, first_line
from torchair.core.identity import Traced, identity, traced

BY_ADDRESS = {"ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "MODULE_MATCH", "CLOSURE_MATCH"}
NEVER = {"DICT_VERSION", "NN_MODULE", "WEAKREF_ALIVE"}
Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
Scope = dict[str, Any]
_number = itertools.count()


@dataclass(frozen=True)
class Known:
    """A guard on an address, and what was there."""

    guard: Any
    identity: tuple[str, ...]


@dataclass(frozen=True)
class Frame:
    """What Dynamo made of one call. All of it is data."""

    code: Any
    """Byte code, as `SerializedCode`."""
    compiled: str
    """The name by which it calls the compiled graph,"""
    imports: Mapping[str, str]
    """those of modules,"""
    builtins: str
    """and that of Python's own names."""
    guards: bytes
    known: tuple[Known, ...]
    ordered: tuple[Any, ...]
    """Dictionaries whose order counts."""
    sources: tuple[Traced, ...]
    text: str
    """The graph and its inputs, to read."""

    def code_object(self) -> types.CodeType:
        """The byte code."""
        return SerializedCode.to_code_object(self.code)

    def pack(self) -> bytes:
        """For a file; `NotPossible` says what in it is no data."""
        try:
            return pickle.dumps({f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, protocol=5)
        except Exception as error:
            raise NotKept(f"Dynamo's code cannot be kept: {first_line(error)}") from error

    @staticmethod
    def unpack(data: bytes) -> Frame:
        """What was packed."""
        return Frame(**_loads(data))

    def why_other(self) -> str | None:
        """None where the code that was traced is what this process has."""
        return next((why for source in self.sources if (why := source.why_other()) is not None), None)


class NotKept(NotPossible):
    """What Dynamo made of a call is no data."""


class Unguarded:
    """What a module holds of this kind is no part of its guards."""


class _Pickler(GuardsStatePickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Unguarded):
            return _Missing, ("it is compiled by itself",)
        return super().reducer_override(obj)


def usual_compile(method: Any, backend: Backend, dynamic: bool | None) -> Callable[..., Any]:
    """`torch.compile` for what cannot be kept."""
    return torch.compile(method, backend=backend, dynamic=dynamic, fullgraph=True)


class Ready:
    """A frame in this process: its guards, and its function."""

    def __init__(self, frame: Frame, function: types.FunctionType, scope: Scope, compiled: Any) -> None:
        self.scope = _installed(frame, function.__globals__)
        name = f"{frame.compiled}_{next(_number)}"
        self.scope[name] = compiled
        code = frame.code_object()
        code = code.replace(
            co_names=tuple(name if each == frame.compiled else each for each in code.co_names)
        )
        self.function = types.FunctionType(code, self.scope, closure=_closure(code, function))
        self.function.__defaults__ = function.__defaults__
        self.function.__kwdefaults__ = function.__kwdefaults__
        state = _loads(frame.guards)
        self._values = _manager(function.__code__, state.output_graph, self.scope, state.shape_code_parts)
        known = _Verified(frame.known)
        graph = dataclasses.replace(
            state.output_graph,
            local_scope=scope,
            global_scope=self.scope,
            guard_on_key_order=set(frame.ordered),
            _guards=GuardsSet({_fresh(each.guard) for each in frame.known}),
            _aotautograd_guards=[],
            skip_guards_check=True,
        )
        self._addresses = _manager(function.__code__, graph, self.scope, None, known)
        self._kept = known.values  # so that no other object gets one of these addresses

    def matches(self, scope: Scope) -> bool:
        """Is it for a call with these variables, as things are?"""
        return self._values.check(scope) and self._addresses.check(scope)

    def why_not(self, scope: Scope) -> str:
        """Which guard fails."""
        for manager in (self._values, self._addresses):
            found = manager.check_verbose(scope)
            if not found.result:
                return "; ".join(map(str, found.verbose_code_parts)) or str(found)
        return ""


class _Verified:
    """Lets those guards pass whose objects are what they were; `BadEntry` says which is not."""

    def __init__(self, known: Sequence[Known]) -> None:
        self._known = {(each.guard.name, each.guard.create_fn_name()): each.identity for each in known}
        self.values = list[Any]()

    def __call__(self, entries: Sequence[Any]) -> list[bool]:
        for entry in entries:
            told = self._known[entry.orig_guard.name, entry.guard_type]
            if not entry.has_value or (now := _identity_of(entry)) != told:
                now = identity(entry.value) if entry.has_value else ("nothing",)
                raise BadEntry(f"{entry.name} was {' '.join(told[:3])} and is {' '.join(now[:3])}")
            self.values.append(entry.value)
        return [True] * len(entries)


def _identity_of(entry: Any) -> tuple[str, ...]:
    """Of a type match it is the type that counts."""
    return identity(type(entry.value) if entry.guard_type == "TYPE_MATCH" else entry.value)


def capture_frame(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backend: Backend,
    dynamic: bool | None,
) -> tuple[Frame, Callable[..., Any]]:
    """Trace a call and compile its graph; `NotPossible` where the result is no data. Errors of the trace and
    of the backend are raised as they are.
    """
    found = dict[str, tuple[Callable[..., Any], str]]()

    def compile_graph(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.clear()  # Dynamo may begin again
        text = readable_graph(gm)
        compiled = backend(gm, inputs)
        found[gm.meta["backend_id"]] = (compiled, text)
        return compiled

    frame = convert_frame._get_frame(method, args, kwargs)
    # As `torch.compile` goes about it, but for the cache of the frame's code.
    with (
        get_metrics_context(),
        dynamo_timed("capture_frame"),
        set_enable_dynamic(dynamic),
        torch_function_mode_stack_state_mgr,
        compile_context(CompileContext(convert_frame.get_compile_id({}))),
        _unique(),
    ):
        made = convert_frame.compile_frame(
            frame.code,
            frame.globals,
            frame.locals,
            frame.builtins,
            frame.closure,
            compiler_fn=compile_graph,
            one_graph=True,
            restart_reasons=set(),
        )
        if not found:
            raise NotKept("the call has no tensor operations")
        ((name, (compiled, text)),) = found.items()
        captured = made.graph_capture_output(frame.argdefs, frame.kwdefaults)
        return _frame(captured, convert_frame.get_traced_fn(method)[0], name, text), compiled


def _frame(made: Any, function: Any, name: str, text: str) -> Frame:
    known = list[Known]()

    def choose(entries: Sequence[Any]) -> list[bool]:
        return [_is_value(entry, known) for entry in entries]

    graph = made.output_graph
    ordered = tuple(graph.guard_on_key_order)
    try:
        with _kept_guards(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it asks for the gradients of all tensors
            check = CheckFunctionManager(
                function.__code__, graph, guard_filter_fn=choose, save_guards=True, strict_error=True
            )
    except (PackageError, pickle.PicklingError, TypeError, AttributeError) as error:
        raise NotKept(f"a guard cannot be kept: {first_line(error)}") from error
    unknown = set(made.bytecode.co_freevars) - set(function.__code__.co_freevars)
    if unknown:
        raise NotKept(f"Dynamo's code has variables of its own: {', '.join(sorted(unknown))}")
    try:
        sources = traced([function.__code__, *made.traced_code])
    except NotPossible as error:
        raise NotKept(error.what) from error
    return Frame(
        SerializedCode.from_code_object(made.bytecode),
        name,
        dict(made.import_sources),
        graph.name_of_builtins_dict_key_in_fglobals or "",
        check.guards_state,
        tuple(known),
        ordered,
        sources,
        text,
    )


WIDTH = 100


def readable_graph(gm: torch.fx.GraphModule) -> str:
    """A graph of Dynamo's and its inputs."""
    lines = [" graph module ".center(WIDTH, "-"), gm.print_readable(print_output=False)]
    lines.append(" inputs ".center(WIDTH, "-"))
    for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        source, value = getattr(node, "_dynamo_source", None), node.meta.get("example_value")
        name = getattr(source, "name", "")
        name = str(name() if callable(name) else name)
        kind = "Parameter" if "._parameters[" in name else "Buffer" if "._buffers[" in name else "UserInput"
        shown = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        lines.append(f"{place}: {node.name} {kind} {name} {shown}")
    return "\n".join(lines)


def _is_value(entry: Any, known: list[Known]) -> bool:
    """Can Dynamo write this guard? Else it is about an address, and goes to those."""
    kinds = {entry.guard_type, *entry.derived_guard_types}
    if kinds & NEVER:
        raise NotKept(f"a guard cannot be kept: {entry.guard_type} of {entry.name}")
    is_local_type = bool(getattr(entry.orig_guard, "_unserializable", False))
    if not kinds & BY_ADDRESS and not is_local_type:
        return True
    try:
        told = _identity_of(entry)
    except NotPossible as error:
        raise NotKept(f"a guard cannot be kept: {entry.name}: {error.what}") from error
    known.append(Known(_fresh(entry.orig_guard), told))
    return False


def _fresh(guard: Any) -> Any:
    """Without what building it has added."""
    names = {field.name for field in dataclasses.fields(guard)}
    added = ("obj_weakref", "guarded_class_weakref", "guard_types", "code_list", "stack", "user_stack")
    return dataclasses.replace(guard, **{name: None for name in added if name in names})


@contextmanager
def _kept_guards() -> Iterator[None]:
    """How guards are made here: those on hooks are checked, which Dynamo leaves out by default, and what is
    not guarded is not written.
    """
    with (
        mock.patch.object(dynamo_guards, "GuardsStatePickler", _Pickler),
        dynamo_config.patch(skip_nnmodule_hook_guards=False),
    ):
        yield


def _manager(code: Any, graph: Any, scope: Scope, shapes: Any, choose: Any = None) -> Any:
    with _kept_guards():
        return CheckFunctionManager(
            code,
            OutputGraphCommon(graph),
            guard_filter_fn=choose,
            shape_code_parts=shapes,
            runtime_global_scope=scope,
        ).guard_manager


def _installed(frame: Frame, scope: Scope) -> Scope:
    """The names that the frame's code and guards use beside those of its module."""
    for name, module in frame.imports.items():
        if name not in scope:
            scope[name] = importlib.import_module(module)
    if frame.builtins and frame.builtins not in scope:
        scope[frame.builtins] = vars(builtins)
    return scope


def _closure(code: types.CodeType, function: types.FunctionType) -> tuple[types.CellType, ...] | None:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return tuple(cells[name] for name in code.co_freevars) or None


@contextmanager
def _unique() -> Iterator[None]:
    """Names that Dynamo makes up are never those of another process."""
    own = output_graph.unique_id

    def unique(name: str, with_uuid: bool = False) -> str:
        return own(name if with_uuid else f"{name}_{uuid.uuid4().hex}", with_uuid)

    with mock.patch.object(output_graph, "unique_id", unique):
        yield


STANDARD = {
    "builtins": {
        "set",
        "frozenset",
        "dict",
        "list",
        "tuple",
        "slice",
        "range",
        "complex",
        "bytearray",
        "object",
    },
    "collections": {"OrderedDict", "deque", "defaultdict", "Counter", "namedtuple"},
    "functools": {"partial"},
    "copyreg": {"_reconstructor", "__newobj__"},
    "types": {"SimpleNamespace", "MappingProxyType"},
    "inspect": {"Signature", "Parameter", "_ParameterKind"},
    "itertools": {"count"},
    "pathlib": {"PosixPath", "PurePosixPath", "Path"},
    "datetime": {"date", "datetime", "timedelta"},
}
"""Of the standard library, what may be in guards."""


_PLAIN_TYPES = {name for name, value in vars(builtins).items() if isinstance(value, type)} - {"type", "super"}
_HARMFUL = {"os", "posix", "subprocess", "ctypes", "runpy", "code", "pty", "multiprocessing", "importlib"}


class _Loader(pickle.Unpickler):
    """Calls nothing but torch, and what modules define that the program has imported itself. Of Python's own
    modules only classes are known; functions are names that cannot be called.
    """

    def find_class(self, module: str, name: str) -> Any:
        top = module.partition(".")[0]
        if top in ("torch", "torchair", "sympy"):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _part_of_pickler
        if top not in sys.stdlib_module_names or module == "__main__":
            if module not in sys.modules:
                raise BadEntry(f"a kept compilation names {module}, which is not imported")
            return super().find_class(module, name)
        is_known = name in STANDARD.get(module, ()) or (module == "builtins" and name in _PLAIN_TYPES)
        found = super().find_class(module, name) if is_known or module in sys.modules else None
        is_class = isinstance(found, type) and top not in _HARMFUL | {"builtins"}
        return found if is_known or is_class else _Name(module, name)


@dataclass(frozen=True)
class _Name:
    """A function that is part of some scope. Guards on it are made of the live one."""

    module: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise BadEntry(f"a kept compilation does not call {self.module}.{self.name}")


def _part_of_pickler(owner: Any, name: str) -> Any:
    """How pickle finds a class method."""
    if not (
        isinstance(owner, type) and issubclass(owner, GuardsStatePickler) and name.startswith("_unpickle_")
    ):
        raise BadEntry(f"a kept compilation does not ask for {name}")
    return getattr(owner, name)


def _loads(data: bytes) -> Any:
    try:
        return _Loader(io.BytesIO(data)).load()
    except AirError:
        raise
    except Exception as error:
        raise BadEntry(f"this cannot be loaded: {type(error).__name__}: {first_line(error)}") from error
