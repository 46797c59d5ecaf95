"""Replace markers of the calling stream by its identity, which is read when the graph runs."""

from __future__ import annotations

from typing import Any

from torch import fx

from torchair.ops.streams import stream_ops
from torchair.passes.pass_manager import PassContext

READERS = (
    stream_ops.EVENT_RECORD_ON
    | stream_ops.EVENT_WAIT_ON
    | stream_ops.STREAM_WAIT
    | stream_ops.ENTER
    | stream_ops.KEEP
)


def resolve_default_stream_markers(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Read the stream and each part of its identity once, at the start of the graph."""
    readers = [node for node in gm.graph.nodes if node.target in READERS and _markers(node.args)]
    if not readers:
        return 0
    first = next(node for node in gm.graph.nodes if node.op != "placeholder")
    with gm.graph.inserting_before(first):
        stream = gm.graph.call_function(stream_ops.entry_stream)
        fields = {
            marker: gm.graph.call_function(stream_ops.stream_field, (stream, field))
            for marker, field in stream_ops.MARKERS.items()
        }
    for node in readers:
        node.args = _resolved(node.args, fields)
    for node in fields.values():
        if not node.users:
            gm.graph.erase_node(node)
    gm.recompile()
    return len(readers)


def _markers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_markers(item) for item in value)
    return isinstance(value, str) and value in stream_ops.MARKERS


def _resolved(value: Any, fields: dict[str, fx.Node]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_resolved(item, fields) for item in value])
    return fields.get(value, value) if isinstance(value, str) else value
