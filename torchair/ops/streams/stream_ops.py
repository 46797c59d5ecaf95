"""Define streams and events inside a graph: ops for models and users' passes, and their implementation.

The same ops are in two namespaces, `npugraph_ex` and `air`. A scope is a pair of nodes; the code generator
prints the pair of a stream scope as a `with` block. Without an accelerator, all ops run in order on one
stream, and these ops only keep track of names.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import fx
from torch.fx.node import has_side_effect

from torchair.core.errors import NotPossible
from torchair.core.torch_private.operators.schemas import has_operator, register_fake, unfunctionalized
from torchair.ops.streams import core_limits

NAMESPACES = ("npugraph_ex", "air")
STREAM = "str stream_id, str device_index, str device_type"
SCHEMAS = (
    "scope_enter(str[] keys, str[] values, bool need_execute=False) -> ()",
    "scope_exit(bool need_execute=False) -> ()",
    "record(*, Device? device=None) -> Tensor",
    "wait(Tensor[] x) -> ()",
    "tagged_event_record(str tag, bool created_inside=False) -> ()",
    "tagged_event_wait(str tag, bool created_inside=False) -> ()",
    f"tagged_event_record_on_stream(str event_tag, {STREAM}, bool created_inside=False) -> ()",
    f"tagged_event_wait_on_stream(str event_tag, {STREAM}, bool created_inside=False) -> ()",
    f"tagged_stream_wait_stream({STREAM}, str other_stream_id, str other_device_index, "
    "str other_device_type) -> ()",
    "record_tagged_stream(Tensor input, str tag) -> ()",
    "record_tagged_stream_(Tensor(a!) input, str tag) -> ()",
    f"record_tagged_on_stream(Tensor input, {STREAM}) -> ()",
    f"record_tagged_on_stream_(Tensor(a!) input, {STREAM}) -> ()",
    "wait_tensor(Tensor self, Tensor dependency) -> Tensor",
)

# Keys of a scope that moves work to another stream; the last three identify an existing stream.
LABEL, PRIORITY = "_user_stream_label", "_user_stream_priority"
IDENTITY = ("_user_stream_id", "_user_stream_device_index", "_user_stream_device_type")
INNER_PARALLEL = "_enable_inner_parallel"
# Keys of the other scopes. A limit of cores may identify a stream.
CORE_LIMITS = core_limits.CORES
LIMITED_STREAM = ("_op_stream_stream_id", "_op_stream_device_index", "_op_stream_device_type")
DETERMINISTIC, DETERMINISTIC_LEVEL = "_deterministic", core_limits.LEVEL
SUPER_KERNEL, SUPER_KERNEL_OPTIONS = "_super_kernel_scope", "_super_kernel_options"
NEVER_TIMEOUT, DATA_DUMP = "_op_exec_never_timeout", "torchair_enable_data_dump"
# Placeholders for the stream on which the graph is called, until a pass sets its identity.
MARKERS = {
    "DEFAULT_STREAM_ID_MARKER": "stream_id",
    "DEFAULT_DEVICE_INDEX_MARKER": "device_index",
    "DEFAULT_DEVICE_TYPE_MARKER": "device_type",
}
MAIN = "default"

EVENT = "event"
"""Meta of a node: the event that it records, made for this graph. The runner of the graph keeps it alive."""

# Streams (one per label and device) and user-named events live as long as the process; events of a graph live
# as long as the graph.
_streams: dict[tuple[str, Any, str], Any] = {}
_events: dict[bool, MutableMapping[str, Event]] = {False: {}, True: WeakValueDictionary()}
_naming = threading.Lock()
_graphs = itertools.count()
_here = threading.local()


def device_module() -> Any:
    """Return `torch.cuda` or `torch.npu` if it is initialized, else `torch.cpu`, whose streams do nothing."""
    module = torch.get_device_module()
    in_use = module.is_available() and getattr(module, "is_initialized", lambda: True)()
    return module if in_use else torch.cpu


class Event:
    """A named point on a stream; the device event is created on first use."""

    def __init__(self, tag: str = "") -> None:
        self.tag = tag
        self._made: Any = None

    def __reduce__(self) -> Any:
        raise NotPossible(f"the event {self.tag!r} cannot be serialized: it exists only in this process")

    def _event(self) -> Any:
        if self._made is None:
            self._made = device_module().Event()
        return self._made

    def record(self, stream: Any = None) -> None:
        """Record the event on this or the current stream."""
        self._event().record(*([] if stream is None else [stream]))

    def wait(self, stream: Any = None) -> None:
        """Let this or the current stream wait for the recorded point."""
        self._event().wait(*([] if stream is None else [stream]))


def create_event(tag: str, created_inside: bool = False) -> Event:
    """Create a named event. Names of the user and of the compiler are separate. An event of the compiler is
    freed when the last reference to it is gone.
    """
    with _naming:
        if tag in _events[created_inside]:
            raise ValueError(f"an event named {tag!r} exists already")
        made = _events[created_inside][tag] = Event(tag)
        return made


def shared_event(tag: str) -> Event:
    """Return the compiler's event of that name; the first caller creates it."""
    with _naming:
        made = _events[True].get(tag) or Event(tag)
        _events[True][tag] = made
        return made


def tag_of(event: Any) -> str:
    """Return the name of a user's event."""
    tag = getattr(event, "tag", "")
    if tag not in _events[False]:
        raise ValueError(f"expected an event from npu_create_tagged_event, got {event!r}")
    return tag


def find_event(tag: str, created_inside: bool = False) -> Event:
    """Return the event of that name."""
    found = _events[created_inside].get(tag)
    assert found is not None, f"no event {tag!r} was created {'by the compiler' if created_inside else ''}"
    return found


def graph_prefix() -> str:
    """Return a unique name for the events of one graph: `graph_0`, `graph_1`, …"""
    return f"graph_{next(_graphs)}"


class StreamScope:
    """Context manager that moves work to the stream of a scope, and applies its limits."""

    def __init__(self, keys: Sequence[str], values: Sequence[str], device: str = "") -> None:
        self._attributes = dict(zip(keys, values, strict=True))
        self._stream = stream_of(self._attributes)
        self._module = torch.cpu if device == "cpu" else device_module()
        self._inner = contextlib.ExitStack()
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = getattr(_here, "entry", None)
        if self._stream is not None:
            if self._before is None:
                _here.entry = device_module().current_stream()
            self._inner.enter_context(device_module().stream(core_limits.acting(self._stream)))
        if core_limits.is_limit(self._attributes):
            stream = limited_stream_of(self._attributes)
            self._inner.enter_context(core_limits.limited(self._attributes, self._module, stream))

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)  # type: ignore[arg-type]
        _here.entry = self._before


def stream_of(attributes: Mapping[str, str]) -> Any:
    """Return the stream of a scope: by identity, or by label; None if it has none."""
    if all(key in attributes for key in IDENTITY):
        return stream_by_identity(*(attributes[key] for key in IDENTITY))
    if LABEL not in attributes:
        return None
    return labelled_stream(attributes[LABEL], int(attributes.get(PRIORITY, "0")))


def limited_stream_of(attributes: Mapping[str, str]) -> Any:
    """Return the stream with limited cores; None for the current one."""
    given = [attributes[key] for key in LIMITED_STREAM if key in attributes]
    if not given:
        return None
    if len(given) != len(LIMITED_STREAM) or 0 < sum(value in MARKERS for value in given) < len(given):
        raise RuntimeError(f"a core limit identifies a stream by {len(LIMITED_STREAM)} numbers, got {given}")
    return core_limits.acting(stream_by_identity(*given))


def labelled_stream(label: str, priority: int = 0) -> Any:
    """Return the stream of that label on the current device; the first call creates it."""
    if label == MAIN:
        return entry_stream()
    module = device_module()
    key = (module.__name__, module.current_device(), label)
    with _naming:
        if key not in _streams:
            _streams[key] = module.Stream(priority=priority)
        return _streams[key]


def stream_by_identity(stream_id: str, device_index: str, device_type: str) -> Any:
    """Return the stream that three numbers, written as text, identify."""
    module = device_module()
    if module is torch.cpu:
        return module.current_stream()
    return module.Stream(
        stream_id=int(stream_id), device_index=int(device_index), device_type=int(device_type)
    )


def entry_stream() -> Any:
    """Return the stream on which the graph was called, inside of any scope too."""
    entry = getattr(_here, "entry", None)
    return device_module().current_stream() if entry is None else entry


def stream_field(stream: Any, field: str) -> str:
    """Return one part of a stream's identity as text."""
    return str(getattr(stream, field, 0))


# Implementation of the ops


def _scope_enter(keys: list[str], values: list[str], need_execute: bool = False) -> None:
    if not need_execute:
        return
    scope = StreamScope(keys, values)
    scope.__enter__()
    _here.__dict__.setdefault("open", []).append(scope)


def _scope_exit(need_execute: bool = False) -> None:
    if need_execute:
        _here.open.pop().__exit__(None, None, None)


def _record(*, device: torch.device | None = None) -> torch.Tensor:
    token = torch.empty(0, device=device)
    token.recorded = Event()  # type: ignore[attr-defined]
    token.recorded.record()  # type: ignore[attr-defined]
    return token


def _wait(x: list[torch.Tensor]) -> None:
    for token in x:
        recorded = getattr(token, "recorded", None)
        if recorded is not None:
            recorded.wait()


def _event_record(tag: str, created_inside: bool = False) -> None:
    find_event(tag, created_inside).record()


def _event_wait(tag: str, created_inside: bool = False) -> None:
    find_event(tag, created_inside).wait()


def _event_record_on(
    event_tag: str, stream_id: str, device_index: str, device_type: str, created_inside: bool = False
) -> None:
    stream = core_limits.acting(stream_by_identity(stream_id, device_index, device_type))
    find_event(event_tag, created_inside).record(stream)


def _event_wait_on(
    event_tag: str, stream_id: str, device_index: str, device_type: str, created_inside: bool = False
) -> None:
    stream = core_limits.acting(stream_by_identity(stream_id, device_index, device_type))
    find_event(event_tag, created_inside).wait(stream)


def _stream_wait_stream(*identities: str) -> None:
    waiting, waited = (
        core_limits.acting(stream_by_identity(*each)) for each in (identities[:3], identities[3:])
    )
    waiting.wait_stream(waited)


def _keep_for(input: torch.Tensor, stream: Any) -> None:
    if input.device.type != "cpu":
        input.record_stream(stream)


def _keep_for_tag(input: torch.Tensor, tag: str) -> None:
    _keep_for(input, labelled_stream(tag))


def _keep_for_identity(input: torch.Tensor, *identity: str) -> None:
    _keep_for(input, stream_by_identity(*identity))


def _wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    return self


_KERNELS: dict[str, Callable[..., Any]] = {
    "scope_enter": _scope_enter,
    "scope_exit": _scope_exit,
    "record": _record,
    "wait": _wait,
    "tagged_event_record": _event_record,
    "tagged_event_wait": _event_wait,
    "tagged_event_record_on_stream": _event_record_on,
    "tagged_event_wait_on_stream": _event_wait_on,
    "tagged_stream_wait_stream": _stream_wait_stream,
    "record_tagged_stream": _keep_for_tag,
    "record_tagged_stream_": _keep_for_tag,
    "record_tagged_on_stream": _keep_for_identity,
    "record_tagged_on_stream_": _keep_for_identity,
    "wait_tensor": _wait_tensor,
}


def _fake(name: str) -> Callable[..., Any]:
    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def token(*, device: torch.device | None = None) -> torch.Tensor:
        return torch.empty(0, device=device)

    # The same tensor object: a tracer then uses the result of this call in all later uses.
    return {"record": token, "wait_tensor": _wait_tensor}.get(name, nothing)


def _define(namespace: str) -> torch.library.Library:
    library = torch.library.Library(namespace, "FRAGMENT")
    ops = getattr(torch.ops, namespace)
    for schema in SCHEMAS:
        name = schema.partition("(")[0]
        if has_operator(f"{namespace}::{name}"):
            continue
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, _KERNELS[name], "CompositeExplicitAutograd")
        register_fake(library, name, _fake(name))
        if name == "wait_tensor":
            library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        if name.endswith("_"):
            # It only has to survive functionalization; a clone would keep another allocation alive.
            library.impl(name, unfunctionalized(getattr(ops, name[:-1]).default), "Functionalize")
        if name != "record":
            has_side_effect(getattr(ops, name).default)
            has_side_effect(getattr(ops, name))
    return library


LIBRARIES = tuple(_define(namespace) for namespace in NAMESPACES)


# Reading the nodes of a graph


def _named(*names: str) -> frozenset[Any]:
    return frozenset(getattr(getattr(torch.ops, ns), name).default for ns in NAMESPACES for name in names)


ENTER, EXIT = _named("scope_enter"), _named("scope_exit")
SCOPES = ENTER | EXIT
RECORD, WAIT = _named("record"), _named("wait")
EVENT_RECORD, EVENT_WAIT = _named("tagged_event_record"), _named("tagged_event_wait")
EVENT_RECORD_ON = _named("tagged_event_record_on_stream")
EVENT_WAIT_ON = _named("tagged_event_wait_on_stream")
STREAM_WAIT = _named("tagged_stream_wait_stream")
KEEP = _named("record_tagged_stream", "record_tagged_on_stream")
WAIT_TENSOR = _named("wait_tensor")
EVENTS = RECORD | WAIT | EVENT_RECORD | EVENT_WAIT | EVENT_RECORD_ON | EVENT_WAIT_ON | STREAM_WAIT
ALL = SCOPES | EVENTS | KEEP


def events_of(gm: fx.GraphModule) -> list[Event]:
    """Return the events that were created for this graph."""
    return [node.meta[EVENT] for node in gm.graph.nodes if EVENT in node.meta]


def attributes(enter: fx.Node) -> dict[str, Any]:
    """Return keys and values of a scope's first node."""
    given: dict[str, Any] = dict(zip(("keys", "values"), enter.args, strict=False)) | dict(enter.kwargs)
    return dict(zip(given["keys"], given["values"], strict=True))


def is_stream_scope(enter: fx.Node) -> bool:
    """Return whether this scope moves work to another stream."""
    return LABEL in attributes(enter) or all(key in attributes(enter) for key in IDENTITY)


def is_limit(enter: fx.Node) -> bool:
    """Return whether this scope limits cores, or requires deterministic kernels."""
    return core_limits.is_limit(attributes(enter))


def acts(enter: fx.Node) -> bool:
    """Return whether this scope changes how ops run."""
    return is_stream_scope(enter) or is_limit(enter)
