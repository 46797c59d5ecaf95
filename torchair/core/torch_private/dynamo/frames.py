"""Dynamo's result for one call as data: the new code of the frame, and guards that another process can check.

Guards are stored with the facts they saw. A process that loads them verifies the facts and creates the guards
again for its own objects (`guards.py`).
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
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import torch
from torch._dynamo import convert_frame, output_graph
from torch._dynamo.eval_frame import set_enable_dynamic
from torch._dynamo.package import SerializedCode
from torch._dynamo.utils import dynamo_timed, get_metrics_context
from torch._dynamo.variables.torch_function import torch_function_mode_stack_state_mgr
from torch._guards import CompileContext, TracingContext, compile_context, tracing

from torchair.core.errors import AirError, BadEntry, NotPossible, first_line
from torchair.core.fingerprint.python_objects import PLAIN, TracedSources, traced
from torchair.core.torch_private.dynamo.assumed_constants import Assumed, recorded_constants
from torchair.core.torch_private.dynamo.custom_op_keys import op_facts, targets_of, why_other_ops
from torchair.core.torch_private.dynamo.guards import Guards, OtherCall
from torchair.core.torch_private.dynamo.unguarded_reads import Reads, recorded_reads

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
Scope = dict[str, Any]
_number = itertools.count()
NAMED_TUPLE = "namedtuple_"
"""Prefix of the scopes in which Python creates named tuples. They are not modules."""


@dataclass(frozen=True)
class Frame:
    """Dynamo's result for one call. All fields can be serialized."""

    code: Any
    """The byte code, as `SerializedCode`."""
    compiled: str
    """The name by which the code calls the compiled graph."""
    imports: Mapping[str, str]
    """Names of modules in the code."""
    builtins: str
    """The name of the built-ins in the code."""
    constants: Mapping[str, Any]
    """Results of functions that are assumed to be constant, by name."""
    assumed: tuple[Assumed, ...]
    """All calls of such functions."""
    guards: Guards
    sources: tuple[TracedSources, ...]
    ops: Mapping[str, str]
    """User-defined operators and their keys."""
    text: str
    """The graph and its inputs, as readable text."""

    def code_object(self) -> types.CodeType:
        """Return the byte code."""
        return SerializedCode.to_code_object(self.code)

    def pack(self) -> bytes:
        """Serialize the frame.

        Raises:
            NotSerializable: if a part cannot be serialized; the message names it.
        """
        try:
            return pickle.dumps({f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, protocol=5)
        except Exception as error:
            raise NotSerializable(f"Dynamo's code cannot be serialized: {first_line(error)}") from error

    @staticmethod
    def unpack(data: bytes) -> Frame:
        """Return the frame that was packed."""
        return Frame(**_loads(data))

    def why_other(self) -> str | None:
        """Return which traced code differs in this process, or None."""
        whys = (each.why_other() for each in (*self.sources, *self.assumed))
        return next((why for why in whys if why is not None), None) or why_other_ops(self.ops)


class NotSerializable(NotPossible):
    """Dynamo's result for a call cannot be serialized."""


def usual_compile(method: Any, backend: Backend, dynamic: bool | None) -> Callable[..., Any]:
    """Call `torch.compile`, for methods whose compilation cannot be cached."""
    return torch.compile(method, backend=backend, dynamic=dynamic, fullgraph=True)


class Ready:
    """A frame in this process: its guards and its function."""

    def __init__(
        self, frame: Frame, function: types.FunctionType, scope: Scope, load: Callable[[], Any]
    ) -> None:
        """Load the frame for calls like this one.

        Raises:
            OtherCall: if the frame is for other calls. `load` is then not called.
        """
        own = _Names(function.__globals__, frame)
        try:
            self._guards, self._held = frame.guards.manager(function.__code__, scope, own.scope)
            if not self.matches(scope):
                raise OtherCall(self.why_not(scope))
            name = f"{frame.compiled}_{next(_number)}"
            own.add(name, load())
        except BaseException:
            own.remove()
            raise
        weakref.finalize(self, own.remove).atexit = False
        code = frame.code_object()
        code = code.replace(
            co_names=tuple(name if each == frame.compiled else each for each in code.co_names)
        )
        self.function = types.FunctionType(code, own.scope, closure=_closure(code, function))
        self.function.__defaults__ = function.__defaults__
        self.function.__kwdefaults__ = function.__kwdefaults__

    def matches(self, scope: Scope) -> bool:
        """Return whether the guards accept a call with these variables."""
        return self._guards.check(scope)

    def why_not(self, scope: Scope) -> str:
        """Return which guard fails."""
        found = self._guards.check_verbose(scope)
        if found.result:
            return ""
        return "; ".join(map(str, found.verbose_code_parts)) or str(found)


def capture_frame(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backend: Backend,
    dynamic: bool | None,
) -> tuple[Frame, Callable[..., Any]]:
    """Trace a call and compile its graph. Errors of the trace and of the backend are raised unchanged.

    Raises:
        NotSerializable: if the result cannot be serialized.
    """
    found = dict[str, tuple[Callable[..., Any], str, list[Any]]]()

    def compile_graph(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.clear()  # Dynamo may begin again
        text, targets = readable_graph(gm), list(targets_of(gm))  # before the backend changes it
        compiled = backend(gm, inputs)
        found[gm.meta["backend_id"]] = (compiled, text, targets)
        return compiled

    frame = convert_frame._get_frame(method, args, kwargs)
    before = set(frame.globals)
    with _tracing(dynamic), recorded_constants() as calls, recorded_reads() as reads:
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
            raise NotSerializable("the call has no tensor operations to compile")
        ((name, (compiled, text, targets)),) = found.items()
        captured = made.graph_capture_output(frame.argdefs, frame.kwdefaults)
        added = {each: frame.globals[each] for each in set(frame.globals) - before}
        try:
            function = convert_frame.get_traced_fn(method)[0]
            called = FrameCall(name, text, targets, added, calls, reads)
            # Guards read the function modes that the trace has removed; `torch.set_default_device` is one.
            with torch_function_mode_stack_state_mgr.temp_restore_stack():
                return _frame(captured, function, called), compiled
        finally:
            # Code that runs the frame adds these names for the duration of the run.
            for each in added.keys() - captured.import_sources.keys():
                frame.globals.pop(each, None)


@contextmanager
def _tracing(dynamic: bool | None) -> Iterator[None]:
    """Trace like `torch.compile`, but without the cache of the frame's code."""
    with (
        get_metrics_context(),
        dynamo_timed("capture_frame"),
        set_enable_dynamic(dynamic),
        torch_function_mode_stack_state_mgr,
        compile_context(CompileContext(convert_frame.get_compile_id({}))),
        _unique(),
    ):
        yield


@dataclass(frozen=True)
class FrameCall:
    """The compiled graph that a frame calls."""

    name: str
    text: str
    targets: Sequence[Any]
    """Targets of the calls in the graph."""
    added: Mapping[str, Any]
    """Names that Dynamo has added to the module."""
    calls: Sequence[tuple[Any, ...]]
    """Calls of functions that are assumed to be constant."""
    reads: Reads
    """Unguarded reads of the trace."""

    def constants(self) -> dict[str, Any]:
        """Return the added names whose values are plain data."""
        return {name: value for name, value in self.added.items() if isinstance(value, PLAIN)}

    def modules(self, made: Any) -> dict[str, str]:
        """Return the added names that are modules.

        Raises:
            NotSerializable: if the code needs another object.
        """
        found = dict[str, str](made.import_sources)
        builtins_name = made.output_graph.name_of_builtins_dict_key_in_fglobals
        sources = [getattr(guard.originating_source, "name", "") for guard in made.output_graph.guards]
        text = " ".join(str(name() if callable(name) else name) for name in sources)
        known = found.keys() | self.constants().keys() | {self.name, builtins_name}
        for name in self.added.keys() - known:
            value = self.added[name]
            if isinstance(value, types.ModuleType):
                found[name] = value.__name__
            elif isinstance(value, dict) and str(value.get("__name__")).startswith(NAMED_TUPLE):
                found[name] = value["__name__"]
            elif name in made.bytecode.co_names or f"G[{name!r}]" in text:
                kind = type(value).__qualname__
                raise NotSerializable(
                    f"Dynamo's code needs an object that exists only in this process: {name}, a {kind}"
                )
        return found


def _frame(made: Any, function: Any, called: FrameCall) -> Frame:
    graph = made.output_graph
    unknown = set(made.bytecode.co_freevars) - set(function.__code__.co_freevars)
    if unknown:
        raise NotSerializable(f"Dynamo's code has additional closure variables: {', '.join(sorted(unknown))}")
    try:
        guards = Guards.of(function.__code__, graph, called.reads)
        ops = op_facts(called.targets)
        assumed = tuple(Assumed.of(*call) for call in called.calls)
        sources = traced([function.__code__, *made.traced_code])
    except NotPossible as error:
        raise NotSerializable(error.what, next=error.details["next"]) from error
    return Frame(
        SerializedCode.from_code_object(made.bytecode),
        called.name,
        called.modules(made),
        graph.name_of_builtins_dict_key_in_fglobals or "",
        called.constants(),
        assumed,
        guards,
        sources,
        ops,
        called.text,
    )


WIDTH = 100


def readable_graph(gm: torch.fx.GraphModule) -> str:
    """Return a Dynamo graph and its inputs as text."""
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


class _Names:
    """Names that a frame's code and guards use in addition to those of its module. They exist in the module
    while they are in use. Names of modules remain, as Dynamo leaves them for all its frames.
    """

    _users: ClassVar[dict[tuple[int, str], int]] = {}
    _lock = threading.Lock()

    def __init__(self, scope: Scope, frame: Frame) -> None:
        self.scope = scope
        self._own = list[str]()
        for name, module in frame.imports.items():
            if module.startswith(NAMED_TUPLE):
                self.add(name, {"_tuple_new": tuple.__new__, "__builtins__": {}, "__name__": module})
            else:
                scope.setdefault(name, importlib.import_module(module))
        for name, value in frame.constants.items():
            self.add(name, value)
        if frame.builtins:
            self.add(frame.builtins, vars(builtins))

    def add(self, name: str, value: Any) -> None:
        """Add one more use of this name."""
        key = (id(self.scope), name)
        with self._lock:
            self._users[key] = self._users.get(key, 0) + 1
            self.scope[name] = value
        self._own.append(name)

    def remove(self) -> None:
        """Remove the names that are not used elsewhere."""
        while self._own:
            key = (id(self.scope), name := self._own.pop())
            with self._lock:
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self.scope.pop(name, None)


def _closure(code: types.CodeType, function: types.FunctionType) -> tuple[types.CellType, ...] | None:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return tuple(cells[name] for name in code.co_freevars) or None


@contextmanager
def _unique() -> Iterator[None]:
    """Make the names that Dynamo generates unique across processes."""
    own, by_id, token = (
        output_graph.unique_id,
        output_graph.OutputGraph.install_global_by_id,
        uuid.uuid4().hex,
    )

    def unique(name: str, with_uuid: bool = False) -> str:
        return own(name if with_uuid else f"{name}_{uuid.uuid4().hex}", with_uuid)

    def unique_by_id(graph: Any, prefix: str, value: Any) -> str:
        return by_id(graph, f"{prefix}_{token}", value)

    with (
        mock.patch.object(output_graph, "unique_id", unique),
        mock.patch.object(output_graph.OutputGraph, "install_global_by_id", unique_by_id),
    ):
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
"""Names of the standard library that guards may contain."""


_PLAIN_TYPES = {name for name, value in vars(builtins).items() if isinstance(value, type)} - {"type", "super"}
_HARMFUL = {"os", "posix", "subprocess", "ctypes", "runpy", "code", "pty", "multiprocessing", "importlib"}


class _Loader(pickle.Unpickler):
    """An unpickler that calls only torch and definitions in modules that the program has already imported.
    From Python's own modules it loads only classes; functions become names that cannot be called.
    """

    def find_class(self, module: str, name: str) -> Any:
        top = module.partition(".")[0]
        if top in ("torch", "torchair", "sympy"):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _maker_of
        if top not in sys.stdlib_module_names or module == "__main__":
            if module not in sys.modules:
                raise BadEntry(f"the cached compilation refers to the module {module}, which is not imported")
            return super().find_class(module, name)
        is_known = name in STANDARD.get(module, ()) or (module == "builtins" and name in _PLAIN_TYPES)
        found = super().find_class(module, name) if is_known or module in sys.modules else None
        is_class = isinstance(found, type) and top not in _HARMFUL | {"builtins"}
        return found if is_known or is_class else _Name(module, name)


@dataclass(frozen=True)
class _Name:
    """A function in a scope. Guards on it are created for the live function."""

    module: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise BadEntry(f"a cached compilation must not call {self.module}.{self.name}")


def _maker_of(kind: Any, name: str) -> Any:
    """Return `tuple.__new__` or the `_make` of a named tuple, as pickle requests them."""
    if not (isinstance(kind, type) and issubclass(kind, tuple) and name in ("__new__", "_make")):
        raise BadEntry(f"a cached compilation must not refer to {name}")
    return getattr(kind, name)


def _loads(data: bytes) -> Any:
    try:
        # Some sources install guards at construction: those are stored with the others.
        with tracing(TracingContext(None)):
            return _Loader(io.BytesIO(data)).load()
    except AirError:
        raise
    except Exception as error:
        raise BadEntry(
            f"the cached compilation cannot be loaded: {type(error).__name__}: {first_line(error)}"
        ) from error
