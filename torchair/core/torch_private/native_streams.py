"""How Dynamo writes streams and events of a program into its graph: nodes have the number of their stream,
calls of `torch.ops.streams` the numbers of streams and events; a table has the objects.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._dynamo.graph_bytecode_inputs import CURRENT_STREAM_INDEX, get_external_object_by_index

__all__ = ["external_object", "is_current", "is_lookup", "stream_call", "stream_number", "take_number_off"]

external_object = get_external_object_by_index
"""The object behind a number; of a running program, that of the call."""


def is_current(number: int) -> bool:
    """Is this the stream on which the graph is called?"""
    return number == CURRENT_STREAM_INDEX and torch.accelerator.is_available()


def stream_number(node: fx.Node) -> int | None:
    """The number of the stream that was current where this call was traced, unless it is the caller's."""
    found = (node.meta.get("custom") or {}).get("stream")
    return None if found is None or is_current(found) else found


def take_number_off(node: fx.Node) -> None:
    """So that nobody else schedules the node."""
    if "stream" in (node.meta.get("custom") or {}):
        node.meta["custom"] = {key: value for key, value in node.meta["custom"].items() if key != "stream"}


def stream_call(node: fx.Node) -> str:
    """The name of a call of `torch.ops.streams`; empty for all others."""
    target: Any = node.target
    if node.op != "call_function" or isinstance(target, str):
        return ""
    name = str(getattr(target, "_qualified_op_name", "") or getattr(target, "name", lambda: "")())
    return name.removeprefix("streams::").partition(".")[0] if name.startswith("streams::") else ""


def is_lookup(node: fx.Node) -> bool:
    """Does it only fetch an object that a number stands for?"""
    return node.target is get_external_object_by_index
