"""Fork side streams from the graph's own stream at its start and join them before its end.

A device graph records a side stream only if it was forked from the recorded stream and joined to it again.
Results are complete only after the join.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchair.core.errors import BadPass
from torchair.ops.streams import stream_ops
from torchair.ops.streams.scope_analysis import blocks, is_entry, stream_key
from torchair.passes.pass_manager import PassContext

ops = torch.ops.npugraph_ex


def apply_event_closure_with_multi_stream(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Add one event at the start that every side stream waits for, and one per side stream at the end."""
    _keep_events(gm.graph)
    enters = [node for node in gm.graph.nodes if node.target in stream_ops.ENTER]
    moving = [node for node in enters if stream_ops.is_stream_scope(node)]
    named = _named_streams(gm.graph)
    if not moving and not named:
        return 0
    output = next(iter(reversed(gm.graph.nodes)))
    if output.op != "output":
        raise BadPass(
            f"the output node must be the last node of the graph, but {output.name} is",
            next="fix the custom passes, which moved or added this node",
        ).of_user()
    for node in gm.graph.nodes:
        if node.target in stream_ops.SCOPES:
            node.args, node.kwargs = (*node.args[: 2 if node.target in stream_ops.ENTER else 0], True), {}
    prefix = stream_ops.graph_prefix()
    start = _fork(gm.graph, prefix)
    labels = {stream_key(node): None for node in moving}
    identities = dict.fromkeys([*named, *(key for key in labels if isinstance(key, tuple))])
    for identity in identities:
        _close_identity(gm.graph, start, output, prefix, identity)
    for label in labels:
        if isinstance(label, str):
            _close_label(gm.graph, start, output, prefix, label)
    gm.recompile()
    return len(identities) + sum(isinstance(label, str) for label in labels)


def _keep_events(graph: fx.Graph) -> None:
    """Keep the named events of this program alive as long as its graphs."""
    for node in graph.nodes:
        if node.target in _NAMING and node.args[-1] is True and stream_ops.EVENT not in node.meta:
            node.meta[stream_ops.EVENT] = stream_ops.shared_event(node.args[0])


_NAMING = (
    stream_ops.EVENT_RECORD | stream_ops.EVENT_WAIT | stream_ops.EVENT_RECORD_ON | stream_ops.EVENT_WAIT_ON
)


def _named_streams(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """Return the identities of the streams on which events are recorded or waited for by name."""
    found: list[tuple[Any, ...]] = []
    for node in graph.nodes:
        if node.target in stream_ops.EVENT_RECORD_ON | stream_ops.EVENT_WAIT_ON:
            found.append(tuple(node.args[1:4]))
        elif node.target in stream_ops.STREAM_WAIT:
            found += [tuple(node.args[:3]), tuple(node.args[3:6])]
    return [identity for identity in found if not is_entry(identity)]


def _fork(graph: fx.Graph, prefix: str) -> fx.Node:
    """Record the event on the graph's own stream, before all other nodes."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        return _record(graph, ops.tagged_event_record.default, f"{prefix}_{first.name}")


def _close_identity(
    graph: fx.Graph, start: fx.Node, output: fx.Node, prefix: str, identity: tuple[Any, ...]
) -> None:
    index, device, kind = identity
    with graph.inserting_after(start):
        graph.call_function(ops.tagged_event_wait_on_stream.default, (start.args[0], *identity, True))
    tag = f"{prefix}_stream_id_{index}_device_index_{device}_device_type_{kind}"
    with graph.inserting_before(output):
        _record(graph, ops.tagged_event_record_on_stream.default, tag, *identity)
        graph.call_function(ops.tagged_event_wait.default, (tag, True))


def _close_label(graph: fx.Graph, start: fx.Node, output: fx.Node, prefix: str, label: str) -> None:
    """Fork and join a stream label, which has no identity yet.

    Its stream waits where it is first entered, and is recorded where it is left for the last time.
    """
    scopes = [
        block
        for block in blocks(graph)
        if stream_ops.is_stream_scope(block[0]) and stream_key(block[0]) == label
    ]
    with graph.inserting_after(scopes[0][0]):
        graph.call_function(ops.tagged_event_wait.default, (start.args[0], True))
    last = scopes[-1][1]
    tag = f"{prefix}_{last.name}"
    with graph.inserting_before(last):
        _record(graph, ops.tagged_event_record.default, tag)
    with graph.inserting_before(output):
        graph.call_function(ops.tagged_event_wait.default, (tag, True))


def _record(graph: fx.Graph, op: Any, tag: str, *identity: Any) -> fx.Node:
    """Record a new event with that name."""
    node = graph.call_function(op, (tag, *identity, True))
    node.meta[stream_ops.EVENT] = stream_ops.create_event(tag, created_inside=True)
    return node
