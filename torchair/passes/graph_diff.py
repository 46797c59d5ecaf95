"""Describe the nodes of a graph and the changes of a pass, as text for the debug log."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from torch import fx

from torchair.core.text_table import text_lines
from torchair.ge.graph import Graph

GraphSummary = dict[str, "NodeSummary"]


class NodeSummary(NamedTuple):
    """Describe a node or op: its kind (`placeholder`, `call_function`, …; for the IR `op`) and its target."""

    kind: str
    target: str


def graph_summary(graph: Any) -> GraphSummary:
    """Return all nodes of an FX graph or ops of a GE graph, by name."""
    if isinstance(graph, fx.GraphModule):
        return {node.name: NodeSummary(node.op, str(node.target)) for node in graph.graph.nodes}
    if isinstance(graph, Graph):
        return {op.name: NodeSummary("op", op.type) for op in graph.ops}
    return {}


def comparison(before: GraphSummary, after: GraphSummary) -> str:
    """Return counts before and after, added and removed names, and the change per kind and target."""
    gone = [name for name, member in before.items() if after.get(name) != member]
    come = [name for name, member in after.items() if before.get(name) != member]
    lines = [f"{len(before)} -> {len(after)} nodes"]
    lines += [f"  added: {', '.join(come)}"] if come else []
    lines += [f"  removed: {', '.join(gone)}"] if gone else []
    lines += _changes("op", Counter(m.kind for m in before.values()), Counter(m.kind for m in after.values()))
    lines += _changes("target", Counter(_called(before)), Counter(_called(after)))
    return "\n".join(lines)


def _called(members: GraphSummary) -> list[str]:
    """Return the targets of calls; an input's target is only its name."""
    return [member.target for member in members.values() if member.kind not in ("placeholder", "output")]


def _changes(head: str, before: Counter[str], after: Counter[str]) -> list[str]:
    """Return a line for each key whose count changed."""
    counts = [(key, before[key], after[key]) for key in sorted(before | after)]
    return text_lines((head, "before", "after"), [row for row in counts if row[1] != row[2]])
