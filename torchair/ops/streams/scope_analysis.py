"""Find the scopes that enclose each node, and therefore the stream on which it runs.

A scope is a `scope_enter` node and the `scope_exit` node that closes it. A stream is identified by the
identity in a scope, otherwise by its label; None is the stream on which the graph is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from torchair.ops.streams import stream_ops

# Meta of nodes without scope nodes around them yet: the attributes of their scope, and nodes to wait for.
SCOPE, AFTER = "scope", "after"
ACTING = frozenset(
    (
        stream_ops.LABEL, stream_ops.PRIORITY, *stream_ops.CORE_LIMITS, stream_ops.DETERMINISTIC_LEVEL,
        stream_ops.SUPER_KERNEL, stream_ops.SUPER_KERNEL_OPTIONS,
    )
)  # fmt: skip
"""Attributes that change how ops run here; the others are for hardware, or for files."""


def walk(graph: fx.Graph) -> Iterator[tuple[fx.Node, tuple[fx.Node, ...]]]:
    """Yield every node with the first nodes of its scopes, outermost first; both ends are outside."""
    opened: list[fx.Node] = []
    for node in graph.nodes:
        if node.target in stream_ops.EXIT and opened:
            opened.pop()
        yield node, tuple(opened)
        if node.target in stream_ops.ENTER:
            opened.append(node)


def blocks(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    """Return first and last node of every scope, in the order of their ends."""
    opened: list[fx.Node] = []
    found: list[tuple[fx.Node, fx.Node]] = []
    for node in graph.nodes:
        if node.target in stream_ops.ENTER:
            opened.append(node)
        elif node.target in stream_ops.EXIT:
            found.append((opened.pop(), node))
    return found


def drop_scopes(gm: fx.GraphModule) -> bool:
    """Remove scopes and synchronization, which graph order replaces; returns whether there were any."""
    found = [node for node in gm.graph.nodes if node.target in stream_ops.ALL]
    for node in reversed(found):
        if not node.users:
            gm.graph.erase_node(node)
    if found:
        gm.recompile()
    return bool(found)


def stream_key(enter: fx.Node) -> Any:
    """Return the stream a scope moves to: its identity or its label; None if the scope has no stream."""
    found = stream_ops.attributes(enter)
    identity = tuple(found.get(key) for key in stream_ops.IDENTITY)
    if None not in identity:
        return None if is_entry(identity) else identity
    label = found.get(stream_ops.LABEL)
    return None if label == stream_ops.MAIN else label


def is_entry(identity: tuple[Any, ...]) -> bool:
    """Return whether this is the stream on which the graph is called."""
    return tuple(identity) == tuple(stream_ops.MARKERS)


def stream_at(scopes: tuple[fx.Node, ...]) -> Any:
    """Return the stream inside these scopes."""
    inner = next((scope for scope in reversed(scopes) if stream_ops.is_stream_scope(scope)), None)
    return None if inner is None else stream_key(inner)


def stream_of_nodes(graph: fx.Graph) -> dict[fx.Node, Any]:
    """Return the stream of every node."""
    return {node: stream_at(scopes) for node, scopes in walk(graph)}


def annotate(graph: fx.Graph) -> None:
    """Store on every node its stream, determinism, core limits, super kernel, and the number of preceding
    synchronizations: nodes with equal values may be fused.
    """
    synchronizations = 0
    for node, scopes in walk(graph):
        inside = [stream_ops.attributes(scope) for scope in reversed(scopes)]
        levels = [found.get(stream_ops.DETERMINISTIC_LEVEL) for found in inside]
        limits = [tuple(map(found.get, stream_ops.CORE_LIMITS)) for found in inside]
        node.meta["stream_label"] = stream_at(scopes)
        node.meta["deterministic_scope_level"] = next((x for x in levels if x is not None), None)
        node.meta["core_limit_scope"] = next((x for x in limits if None not in x), None)
        units = (found[stream_ops.SUPER_KERNEL] for found in inside if stream_ops.SUPER_KERNEL in found)
        node.meta["super_kernel_scope"] = next(units, "") or None  # empty: an inner block is excluded
        synchronizations += node.target in stream_ops.EVENTS
        node.meta["synchronisations"] = synchronizations


PLACES = (
    "stream_label",
    "deterministic_scope_level",
    "core_limit_scope",
    "super_kernel_scope",
    "synchronisations",
)
