"""Turn streams and events of the user's program into ops with string arguments.

Programs use `with torch.npu.stream(s)` and `event.record()`, but AOTAutograd cannot carry such objects.
Dynamo notes on each call the stream on which it was traced; where that changes, a scope begins or ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchair.core.source_location import source_of
from torchair.core.torch_private.dynamo.streams import (
    external_object,
    is_current,
    is_lookup,
    stream_args,
    stream_call,
    stream_number,
    take_number_off,
)
from torchair.ops.streams import stream_ops
from torchair.passes.pass_manager import PassContext

ops = torch.ops.npugraph_ex
OUTSIDE = "used_outside"
"""Meta key of a graph: its stream numbers, the events to wait for before it runs and to record after it."""
_STREAMS = {"record_event": (1,), "wait_event": (1,), "wait_stream": (0, 1), "record_stream": (1,)}
"""Indices of the stream arguments of calls."""
_ENTERS = stream_ops.ENTER | {op.overloadpacket for op in stream_ops.ENTER}


def has_native_streams(gm: torch.nn.Module) -> bool:
    """Return whether the graph uses streams; most programs use none.

    Graphs that Dynamo did not create have none that torchair could see.
    """
    nodes = gm.graph.nodes if isinstance(gm, fx.GraphModule) else ()
    return any(stream_call(node) or stream_number(node) is not None or _names_stream(node) for node in nodes)


def name_native_streams(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Write scopes and calls for streams and events; return how many were written."""
    if not has_native_streams(gm):
        return 0
    graph, prefix = gm.graph, stream_ops.graph_prefix()
    changed, current = _leave_outside(gm), None
    calls = {node: stream_args(node) for node in graph.nodes if stream_call(node)}
    for node in list(graph.nodes):
        if node.op == "placeholder":
            continue
        number = stream_number(node) if node.op != "output" else None
        is_call = node in calls
        if _names_stream(node):
            _name_limited(node, number)
            number = current  # the first node opens no scope of that stream
        if not is_call and not is_lookup(node) and number != current and node.op != "get_attr":
            _switch(graph, node, prefix, current, number)
            changed, current = changed + 1, number
        take_number_off(node)
        if is_call:
            _rewrite(graph, node, calls[node], prefix, ctx)
            changed += 1
    for node in [node for node in reversed(graph.nodes) if node in calls or is_lookup(node)]:
        if not node.users:
            graph.erase_node(node)
    gm.recompile()
    return changed


def _leave_outside(gm: fx.GraphModule) -> int:
    """Move events that are shared with code outside the graph out of it.

    The whole graph waits for events that were recorded before the call. Events that the graph records are
    recorded once more after it, for waits outside.
    """
    waits: dict[int, None] = {}
    records: dict[int, None] = {}
    used: dict[int, None] = {}
    for node in list(gm.graph.nodes):
        name = stream_call(node)
        given: tuple[Any, ...] = stream_args(node) if name else ()
        numbers = [stream_number(node), *(given[place] for place in _STREAMS.get(name, ()))]
        used |= {number: None for number in numbers if isinstance(number, int) and not is_current(number)}
        if name == "record_event":
            records[given[0]] = None
        elif name == "wait_event" and given[0] not in records:
            waits[given[0]] = None
            gm.graph.erase_node(node)
    numbered = tuple(event for event in records if isinstance(event, int))
    gm.meta[OUTSIDE] = (tuple(used), tuple(waits), numbered)
    return len(waits)


def around_events(run: Callable[..., Any], gm: torch.nn.Module) -> Callable[..., Any]:
    """Wrap the call of a graph so that streams and events outside are ordered around it.

    The graph runs after all earlier work on the streams that it shares, and before all later work.
    """
    used, waits, records = getattr(gm, "meta", {}).get(OUTSIDE, ((), (), ()))
    if not used and not waits and not records:
        return run

    def call(*args: Any) -> Any:
        current = stream_ops.device_module().current_stream()
        others = [external_object(number) for number in used]
        for other in others:
            current.wait_stream(other)
        for number in waits:
            external_object(number).wait()
        result = run(*args)
        for other in others:
            other.wait_stream(current)
        for number in records:
            external_object(number).record()
        return result

    return call


def _switch(graph: fx.Graph, before: fx.Node, prefix: str, old: int | None, new: int | None) -> None:
    with graph.inserting_before(before):
        if old is not None:
            graph.call_function(ops.scope_exit.default)
        if new is not None:
            keys = (stream_ops.LABEL, stream_ops.PRIORITY, *stream_ops.IDENTITY)
            values = (f"{prefix}_stream_{new}", "0", *_identity(new))
            graph.call_function(ops.scope_enter.default, (list(keys), list(values)))


def _names_stream(node: fx.Node) -> bool:
    """Return whether this is the first node of a core limit of a stream."""
    return node.target in _ENTERS and stream_ops.LIMITED_STREAM[0] in stream_ops.attributes(node)


def _name_limited(enter: fx.Node, number: int | None) -> None:
    """Name the limited stream: it was the current stream for this call only."""
    identity = tuple(stream_ops.MARKERS) if number is None else _identity(number)
    found = {**stream_ops.attributes(enter), **dict(zip(stream_ops.LIMITED_STREAM, identity, strict=True))}
    enter.args = (list(found), list(found.values()))


def _identity(number: int) -> tuple[str, ...]:
    """Return three numbers as text, or the placeholder for the stream on which the graph is called."""
    if is_current(number):
        return tuple(stream_ops.MARKERS)
    stream, entry = external_object(number), stream_ops.device_module().current_stream()
    found = tuple(stream_ops.stream_field(stream, field) for field in stream_ops.MARKERS.values())
    called_on = tuple(stream_ops.stream_field(entry, field) for field in stream_ops.MARKERS.values())
    return tuple(stream_ops.MARKERS) if found == called_on else found


def _rewrite(graph: fx.Graph, node: fx.Node, given: tuple[Any, ...], prefix: str, ctx: PassContext) -> None:
    """Rewrite one call; a call that makes the host wait is removed with a warning."""
    name = stream_call(node)
    result = _CALLS.get(name)
    if result is None:
        what = f"{name} has no effect inside a graph: its results are ordered on the stream of the call"
        ctx.degradations.add(what, at=source_of(node), next="call it after the compiled function instead")
    else:
        target, args = result(prefix, *given)
        with graph.inserting_before(node):
            graph.call_function(target, args)


def _event(prefix: str, number: int | str) -> str:
    return f"{prefix}_event_{number}"


_CALLS: dict[str, Callable[..., tuple[Any, tuple[Any, ...]]]] = {
    "record_event": lambda prefix, event, stream: (
        ops.tagged_event_record_on_stream.default, (_event(prefix, event), *_identity(stream), True)
    ),
    "wait_event": lambda prefix, event, stream: (
        ops.tagged_event_wait_on_stream.default, (_event(prefix, event), *_identity(stream), True)
    ),
    "wait_stream": lambda prefix, waiting, waited: (
        ops.tagged_stream_wait_stream.default, (*_identity(waiting), *_identity(waited))
    ),
    "record_stream": lambda prefix, tensor, stream: (
        ops.record_tagged_on_stream_.default, (tensor, *_identity(stream))
    ),
}  # fmt: skip
"""The op and arguments that replace each call."""
