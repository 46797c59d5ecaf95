"""Streams and events in Dynamo's graphs: nodes have the number of their stream, calls of `torch.ops.streams`
the numbers of streams and events; a table has the objects.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._dynamo import graph_bytecode_inputs

from torchair.core.torch_private.operators.schemas import HigherOrderOperator, OpOverload

__all__ = [
    "external_object",
    "is_current",
    "is_lookup",
    "stream_args",
    "stream_call",
    "stream_number",
    "take_number_off",
]

external_object = graph_bytecode_inputs.get_external_object_by_index
"""Return the object with a number; in a running program, the object of the call."""

# Before torch 2.13, the stream of the call has no number, and methods of streams remain methods.
_CURRENT = getattr(graph_bytecode_inputs, "CURRENT_STREAM_INDEX", None)
_METHODS = {
    "wait_stream": "wait_stream",
    "wait_event": "wait_event",
    "record_event": "record_event",
    "synchronize": "synchronize_stream",
}


def is_current(number: int) -> bool:
    """Return whether this is the stream on which the graph is called. Call it during compilation."""
    if not torch.accelerator.is_available():
        return False
    if _CURRENT is not None:
        return number == _CURRENT
    found, here = external_object(number), torch.accelerator.current_stream()
    return isinstance(found, torch.Stream) and _identity(found) == _identity(here)


def _identity(stream: torch.Stream) -> tuple[Any, int]:
    return stream.device, stream.stream_id


def stream_number(node: fx.Node) -> int | None:
    """Return the number of the stream that was current where this call was traced, or None if it is the
    caller's.
    """
    found = (node.meta.get("custom") or {}).get("stream")
    return None if found is None or is_current(found) else found


def take_number_off(node: fx.Node) -> None:
    """Remove the stream number, so that torch does not schedule the node."""
    if "stream" in (node.meta.get("custom") or {}):
        node.meta["custom"] = {key: value for key, value in node.meta["custom"].items() if key != "stream"}


def stream_call(node: fx.Node) -> str:
    """Return the name of a call in `torch.ops.streams`; empty for other calls."""
    target: Any = node.target
    if node.op == "call_method":
        return _METHODS.get(target, "") if _is_lookup(node.args[0]) else ""
    if node.op != "call_function" or isinstance(target, str):
        return ""
    # Classes are call targets, too: a tensor subclass has a `name` that is not a function.
    is_op = isinstance(target, OpOverload | HigherOrderOperator)
    name = target.name() if is_op else str(getattr(target, "_qualified_op_name", ""))
    return name.removeprefix("streams::").partition(".")[0] if name.startswith("streams::") else ""


def stream_args(node: fx.Node) -> tuple[Any, ...]:
    """Return the arguments of such a call: numbers of streams and events, an event before its stream. An
    event that the call creates is identified by a name instead of a number.
    """
    given = [_number(value) for value in node.args]
    if node.op != "call_method" or not str(node.target).endswith("_event"):
        return tuple(given)
    return given[1] if len(given) > 1 else node.name, given[0]


def _number(value: Any) -> Any:
    if _is_lookup(value):
        return value.args[0]
    is_event = isinstance(value, fx.Node) and stream_call(value) == "record_event"
    return value.name if is_event else value


def is_lookup(node: fx.Node) -> bool:
    """Return whether the node only fetches the object with a number."""
    return node.target is external_object


def _is_lookup(item: Any) -> bool:
    return isinstance(item, fx.Node) and is_lookup(item)
