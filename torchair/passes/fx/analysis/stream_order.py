"""Determine which of two nodes runs first when a graph uses several streams.

Nodes of one stream run in graph order. Across streams only events order them: every node before a record on
its stream finishes before any node after a wait for that event starts. One record orders all waits that
follow it; a wait refers to the last record before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from torchair.fxgraph.layout import root_of
from torchair.ops.streams import stream_ops
from torchair.ops.streams.scope_analysis import is_entry, stream_of_nodes

NEVER = float("inf")


@dataclass(frozen=True)
class Edge:
    """Order all nodes up to position `record` on `source` before all nodes from `wait` on `target`."""

    source: Any
    record: int
    target: Any
    wait: int


class Order:
    """Hold positions, streams and events of one graph."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: number for number, node in enumerate(graph.nodes)}
        self.stream = stream_of_nodes(graph)
        self.many = any(stream is not None for stream in self.stream.values())
        self.edges = _edges(graph, self.position, self.stream) if self.many else []

    def is_before(self, first: fx.Node, second: fx.Node) -> bool:
        """Return whether `first` is certainly done when `second` starts.

        Inputs are ready at the start, and all streams join at the end.
        """
        if self.position[first] >= self.position[second]:
            return False
        if first.op in ("placeholder", "get_attr") or second.op == "output":
            return True
        if self.stream[first] == self.stream[second]:
            return True
        reached = self._after(first).get(self.stream[second], NEVER)
        return reached <= self.position[second]

    def _after(self, node: fx.Node) -> dict[Any, float]:
        """Return, per stream, the first position that is certainly after `node`: a fixed point over the
        events.
        """
        reached: dict[Any, float] = {self.stream[node]: self.position[node]}
        changed = True
        while changed:
            changed = False
            for edge in self.edges:
                known = reached.get(edge.source, NEVER) <= edge.record
                if known and edge.wait < reached.get(edge.target, NEVER):
                    reached[edge.target] = edge.wait
                    changed = True
        return reached


def _edges(graph: fx.Graph, position: dict[fx.Node, int], stream: dict[fx.Node, Any]) -> list[Edge]:
    """Return one edge per wait and record that it refers to."""
    edges: list[Edge] = []
    recorded: dict[Any, tuple[Any, int]] = {}
    for node in graph.nodes:
        here, now, target = stream[node], position[node], node.target
        if target in stream_ops.RECORD:
            recorded[node] = here, now
        elif target in stream_ops.EVENT_RECORD:
            recorded[node.args[0]] = here, now
        elif target in stream_ops.EVENT_RECORD_ON:
            recorded[node.args[0]] = _named(node.args[1:4]), now
        elif target in stream_ops.WAIT:
            # A value without a token counts from the node that makes it: a later pass puts the token there.
            results = [root_of(x)[0] for x in _listed(node.args[0])]
            marks = [recorded.get(x, (stream[x], position[x])) for x in results]
            edges += [Edge(source, record, here, now) for source, record in marks]
        elif target in stream_ops.EVENT_WAIT and node.args[0] in recorded:
            edges.append(Edge(*recorded[node.args[0]], here, now))
        elif target in stream_ops.EVENT_WAIT_ON and node.args[0] in recorded:
            edges.append(Edge(*recorded[node.args[0]], _named(node.args[1:4]), now))
        elif target in stream_ops.STREAM_WAIT:
            edges.append(Edge(_named(node.args[3:6]), now, _named(node.args[:3]), now))
    return edges


def _named(identity: tuple[Any, ...]) -> Any:
    return None if is_entry(identity) else tuple(identity)


def _listed(values: Any) -> list[fx.Node]:
    return [value for value in values if isinstance(value, fx.Node)]
