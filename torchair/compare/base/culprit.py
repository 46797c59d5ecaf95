"""Describe the first wrong node, and locate it in passes over FX and GE graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.compare.base.graph_history import FX_PASS, GE_PASS, Snapshot
from torchair.compare.base.replay_call import RecordedCall, Values, is_uninitialized
from torchair.compare.base.tolerances import EXACT, Errors
from torchair.fxgraph.effects import mutates
from torchair.ge.graph import OUTPUT_TYPE, ConstantResult, Graph, Op
from torchair.ge.proto.equality import same_attr

UNINITIALIZED = "Empty"  # the op that returns uninitialized memory
Judge = Callable[[Any, Any], Errors]
"""Measures the difference between two values."""


@dataclass(frozen=True)
class Culprit:
    """The cause of a mismatch: kind, name, and the evidence for it."""

    kind: str
    name: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


@dataclass(frozen=True)
class LocatedMismatch:
    """The first wrong node of a graph. `nodes` are calls of `graph` that reproduce the mismatch."""

    culprit: Culprit
    node: fx.Node | None = None
    op: str = ""
    errors: Errors = EXACT
    graph: fx.GraphModule | None = None
    nodes: tuple[fx.Node, ...] = ()


def locate_in_pass(
    before: Snapshot, after: Snapshot, recorded: RecordedCall, judge: Judge, made_from: fx.GraphModule
) -> LocatedMismatch:
    """Locate the first value that a pass changed; a GE graph was `made_from` this FX graph."""
    if isinstance(before.graph, fx.GraphModule) and isinstance(after.graph, fx.GraphModule):
        return _fx_pass(before.graph, after, recorded, judge)
    assert isinstance(before.graph, Graph) and isinstance(after.graph, Graph), (
        "a pass does not change the kind of graph"
    )
    return _ge_pass(before.graph, after, recorded, judge, made_from)


def _fx_pass(before: fx.GraphModule, step: Snapshot, recorded: RecordedCall, judge: Judge) -> LocatedMismatch:
    after = step.graph
    assert isinstance(after, fx.GraphModule), "a pass does not change the kind of graph"
    was, now = recorded.values(before).values, recorded.values(after).values
    for node, old in fx_matches(before, after).items():
        errors = judge(now[node.name], was[old.name])
        if not errors.ok:
            lost, why = _lost_input(node, old, was, now, judge)
            culprit = Culprit(FX_PASS, step.title, why)
            return LocatedMismatch(
                culprit, lost, str((lost if lost is not old else node).target), errors, before, (lost,)
            )
    # All values are right: the pass removed a side effect, or the graph returns something else.
    remaining = {node.name for node in after.graph.nodes}
    lost = next((n for n in before.graph.nodes if mutates(n.target) and n.name not in remaining), None)
    if lost is not None:
        why = f"{lost.name} wrote an input, and the pass removed it"
        return LocatedMismatch(
            Culprit(FX_PASS, step.title, why), lost, str(lost.target), graph=before, nodes=(lost,)
        )
    return LocatedMismatch(
        Culprit(FX_PASS, step.title, "all nodes are right, but the graph returns other values"), graph=before
    )


def _lost_input(node: fx.Node, old: fx.Node, was: Values, now: Values, judge: Judge) -> tuple[fx.Node, str]:
    """Return the removed node that a call reads a replacement of, otherwise the call."""
    remaining = {other.name for other in node.graph.nodes}
    for new, source in zip(_inputs(node), _inputs(old), strict=False):
        is_gone = source.name not in remaining and source.op == "call_function"
        if is_gone and not judge(now[new.name], was[source.name]).ok:
            return source, f"the pass removed it, and {node.name} reads {new.name} instead"
    return old, "" if old.name == node.name else f"{node.name} replaces it"


def fx_matches(before: fx.GraphModule, after: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """Map nodes that should have the same values in both graphs, in the order of the later graph.

    These are nodes with the same name, and nodes that the same call reads at the same place.
    """
    old = {node.name: node for node in before.graph.nodes}
    found = {n: old[n.name] for n in after.graph.nodes if n.name in old and _is_alike(n, old[n.name])}

    def learn(reader: fx.Node, twin: fx.Node) -> None:
        if reader.target == twin.target and _constants(reader) == _constants(twin):
            for new, source in zip(_inputs(reader), _inputs(twin), strict=True):
                if new not in found and _is_alike(new, source):
                    found[new] = source

    learn(after.graph.output_node(), before.graph.output_node())
    for node in reversed(after.graph.nodes):
        if node in found:
            learn(node, found[node])
    calls = [n for n in after.graph.nodes if n.op == "call_function" and not is_uninitialized(n)]
    return {node: found[node] for node in calls if node in found}


def _inputs(node: fx.Node) -> list[fx.Node]:
    """Return the input nodes in the order of the arguments, including repetitions."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _constants(node: fx.Node) -> str:
    """Return the arguments as text, ignoring nodes among them."""
    return str(fx.map_arg((node.args, node.kwargs), lambda source: None))


def _is_alike(a: fx.Node, b: fx.Node) -> bool:
    """Return whether both are tensors of the same dtype and shape."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    return x.dtype == y.dtype and list(map(str, x.shape)) == list(map(str, y.shape))


def _ge_pass(
    before: Graph, step: Snapshot, recorded: RecordedCall, judge: Judge, made_from: fx.GraphModule
) -> LocatedMismatch:
    after = step.graph
    assert isinstance(after, Graph), "a pass does not change the kind of graph"
    was, now = recorded.edges(before), recorded.edges(after)
    for edge, old in ge_matches(before, after).items():
        errors = judge(now.get(edge), was.get(old))
        if not errors.ok:
            op = after.by_name[edge.rpartition(":")[0]]
            old_op = before.by_name[old.rpartition(":")[0]]
            why = "" if old_op.name == op.name else f"{op.name} replaces {old_op.name}"
            node = node_of(op, made_from) or node_of(old_op, made_from)
            return LocatedMismatch(
                Culprit(GE_PASS, step.title, why), node, f"{op.type} ({op.name})", errors, made_from
            )
    return LocatedMismatch(
        Culprit(GE_PASS, step.title, "all ops are right, but the graph returns other values")
    )


def ge_matches(before: Graph, after: Graph) -> dict[str, str]:
    """Map edges that should carry the same values in both graphs, as `fx_matches` does for nodes."""
    found = {
        tensor.tensor: tensor.tensor
        for op in after.ops
        for tensor in op.outputs
        if (old := before.by_name.get(op.name)) is not None and tensor.index < len(old.outputs)
        if op.type != UNINITIALIZED
    }
    pairs = [
        (new.tensor.tensor, old.tensor.tensor)
        for new, old in zip(after.results, before.results, strict=False)
        if not isinstance(new, ConstantResult) and not isinstance(old, ConstantResult)
    ]
    for op in reversed(after.ops):
        old = before.by_name.get(op.name)
        if old is None or op.type != old.type or op.type == OUTPUT_TYPE or not _same_attrs(op, old):
            continue
        slots = zip(op.slots, old.slots, strict=False)
        pairs += [(s.tensor.tensor, t.tensor.tensor) for s, t in slots if s.tensor and t.tensor]
    for new, source in pairs:
        found.setdefault(new, source)
    edges = [tensor.tensor for op in after.ops for tensor in op.outputs]
    return {edge: found[edge] for edge in edges if edge in found}


def _same_attrs(a: Op, b: Op) -> bool:
    return a.attrs.keys() == b.attrs.keys() and all(same_attr(a.attrs[k], b.attrs[k]) for k in a.attrs)


def node_of(op: Op, made_from: fx.GraphModule) -> fx.Node | None:
    """Return the node of the FX graph that an op was created for."""
    origin = op.origin
    name = "" if origin is None else origin.top or origin.name
    return next((node for node in made_from.graph.nodes if node.name == name), None)
