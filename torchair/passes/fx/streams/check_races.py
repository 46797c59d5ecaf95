"""Find races between streams and order them.

A race is two nodes on different streams that use one memory, of which one writes, and that no event orders.
Collectives of one group that ranks may start in different orders also race. Waits for events that nothing has
recorded are reported, too.

On a device with streams, the results of such a graph depend on timing. torchair warns before the graph runs,
with both nodes and the missing edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.core.source_location import source_of
from torchair.fxgraph.effects import written_by
from torchair.fxgraph.layout import root_of
from torchair.fxgraph.partition import is_free
from torchair.ops.streams import stream_ops
from torchair.passes.fx.analysis.stream_order import Order
from torchair.passes.pass_manager import PassContext

COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "npu_define")


@dataclass(frozen=True)
class Race:
    """Two unordered nodes and the memory or group that they share."""

    first: fx.Node
    second: fx.Node
    what: str
    first_stream: Any
    second_stream: Any

    def __str__(self) -> str:
        return (
            f"{_named(self.first, self.first_stream)} and {_named(self.second, self.second_stream)} "
            f"are not ordered: {self.what}"
        )


def check_races(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Warn of each race and order its nodes with an event; return the number of races.

    The order in which ranks start collectives cannot be fixed here.
    """
    found = 0
    for wait in _waits_for_nothing(gm.graph):
        ctx.degradations.add(
            f"{wait.name} waits for the event {wait.args[0]!r}, which nothing in the graph records before it",
            at=source_of(wait),
            next="record the event before the wait; waiting for an event that was never recorded has no "
            "effect",
        )
    while (race := next(races(gm.graph), None)) is not None:
        found += 1
        _add_event(gm.graph, race)
        if _is_write_back(race.second):
            continue  # AOTAutograd added this write, after all nodes of the user's program
        ctx.degradations.add(
            f"a race between streams: {race}",
            at=source_of(race.second) or source_of(race.first),
            next=f"record an event after {race.first.name} and let stream {_shown(race.second_stream)} "
            f"wait for it before {race.second.name}; torchair has ordered them in this program",
        )
    if found:
        gm.recompile()
    return found


def _add_event(graph: fx.Graph, race: Race) -> None:
    with graph.inserting_after(race.first):
        token = graph.call_function(torch.ops.air.record.default)
    with graph.inserting_before(race.second):
        graph.call_function(torch.ops.air.wait.default, ([token],))


def races(graph: fx.Graph) -> Iterator[Race]:
    """Yield pairs of nodes that may run at the same time and must not."""
    order = Order(graph)
    if not order.many:
        return
    touched: dict[fx.Node, list[tuple[fx.Node, bool]]] = {}
    collectives: list[fx.Node] = []
    updates = _updates(graph)
    for node in graph.nodes:
        if node.op != "call_function" or node.target in stream_ops.ALL or is_free(node):
            continue
        for root, writes in (_touches(node) | dict.fromkeys(updates.get(node, ()), True)).items():
            for other, wrote in touched.setdefault(root, []):
                if (writes or wrote) and other is not node and not order.is_before(other, node):
                    yield Race(other, node, _what(root, other, node), order.stream[other], order.stream[node])
            touched[root].append((node, writes))
        if _is_collective(node):
            for other in collectives:
                if not order.is_before(other, node):
                    what = "ranks may start these collectives in different orders and deadlock"
                    yield Race(other, node, what, order.stream[other], order.stream[node])
            collectives.append(node)


def _updates(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Map each node to the inputs that it updates: the user's program wrote them at this node."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if _is_write_back(node):
            found.setdefault(root_of(node.args[1])[0], []).append(node.args[0])
    return found


def _is_write_back(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder"  # type: ignore[union-attr]


def _touches(node: fx.Node) -> dict[fx.Node, bool]:
    """Return the memory that a node reads (False) or writes (True); creating a value writes it."""
    found = {root_of(source)[0]: False for source in node.all_input_nodes if _is_memory(source)}
    found |= {root_of(target)[0]: True for target in written_by(node)}
    if _is_memory(node):
        found[root_of(node)[0]] = True
    return found


def _is_memory(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) or (
        isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value)
    )


def _what(root: fx.Node, first: fx.Node, second: fx.Node) -> str:
    if root is first:
        return f"{second.name} may read {root.name} before it is computed"
    return f"both use {root.name}, and one of them writes it"


def _is_collective(node: fx.Node) -> bool:
    return getattr(node.target, "namespace", "") in COLLECTIVES and "wait_tensor" not in str(node.target)


def _waits_for_nothing(graph: fx.Graph) -> Iterator[fx.Node]:
    recorded = set[Any]()
    for node in graph.nodes:
        if node.target in stream_ops.EVENT_RECORD | stream_ops.EVENT_RECORD_ON:
            recorded.add(node.args[0])
        is_wait = node.target in stream_ops.EVENT_WAIT | stream_ops.EVENT_WAIT_ON
        # An event that the user created may be recorded outside the graph.
        if is_wait and node.args[0] not in recorded and node.args[-1] is True:
            yield node


def _named(node: fx.Node, stream: Any) -> str:
    at = f" at {source_of(node)}" if source_of(node) else ""
    return f"{node.name} ({node.target}) on stream {_shown(stream)}{at}"


def _shown(stream: Any) -> str:
    return "of the graph" if stream is None else repr(stream)
