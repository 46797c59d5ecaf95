"""Locate the first wrongly lowered op: repeat the lowering and return the value of every op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.backend.pipeline.context import Context
from torchair.compare.base.culprit import UNINITIALIZED, Culprit, Judge, LocatedMismatch, node_of
from torchair.compare.base.replay_call import RecordedCall, edge_value, run_fx
from torchair.compare.base.tolerances import Errors
from torchair.core.torch_private.compilers.inductor import lowering_table
from torchair.engine.lower import lower
from torchair.fxgraph.placeholders import placeholders
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Graph, Op, TensorResult, copy_graph
from torchair.ge.graph import Tensor as Edge

LOWERING, DECOMPOSITION = "lowering", "decomposition"
Table = Mapping[Any, Any]


@dataclass(frozen=True)
class LoweredGraph:
    """How one GE graph was lowered."""

    graph: Graph
    gm: fx.GraphModule  # the source of the GE graph
    ctx: Context

    def again(self, graph: Graph, table: Table) -> fx.GraphModule:
        """Lower a graph with the same arguments."""
        named = [(node.name, node.meta["val"]) for node in placeholders(self.gm)]
        return lower(graph, named, self.ctx.info.fake_mode, self.ctx.device, table)


def locate_wrong_lowering(lowered: LoweredGraph, recorded: RecordedCall, judge: Judge) -> LocatedMismatch:
    """Locate the first op whose ATen calls compute other values than its kernel."""
    table = lowering_table(lowered.ctx.plan.lowered_for)
    probe = LoweringProbe(lowered, recorded, recorded.edges(lowered.graph), judge)
    wrong = probe.first_wrong(table)
    if wrong is None:
        return LocatedMismatch(
            Culprit(LOWERING, "of the whole graph", "each op alone is lowered correctly"), graph=lowered.gm
        )
    edge, errors = wrong
    node = node_of(edge.op, lowered.gm)
    nodes = () if node is None else (node,)
    return LocatedMismatch(
        _rule(edge.op, probe, table), node, f"{edge.op.type} ({edge.op.name})", errors, lowered.gm, nodes
    )


@dataclass(frozen=True)
class LoweringProbe:
    """The graph with all its values as results, lowered with a given table of decompositions."""

    lowered: LoweredGraph
    recorded: RecordedCall
    edges: Mapping[str, Any]  # the expected values
    judge: Judge

    def graph(self, table: Table) -> tuple[fx.GraphModule, list[Edge]]:
        """Return the lowered graph, and the edges that it returns."""
        graph = copy_graph(self.lowered.graph)
        silent = (*INPUT_TYPES, OUTPUT_TYPE, "Const", "Assign", UNINITIALIZED)
        edges = [e for op in graph.ops if op.type not in silent and not op.subgraphs for e in op.outputs]
        edges = [edge for edge in edges if isinstance(edge.meta, torch.Tensor)]
        graph.results = [TensorResult(edge) for edge in edges]
        return self.lowered.again(graph, table), edges

    def first_wrong(self, table: Table) -> tuple[Edge, Errors] | None:
        """Return the first edge with a wrong value; None if all are right or the graph fails."""
        gm, edges = self.graph(table)
        made = self.recorded.run(run_fx(gm))
        for edge, value in zip(edges, made.outputs, strict=not made.error):
            errors = self.judge(value, edge_value(self.edges[edge.tensor], self.recorded.device))
            if not errors.ok:
                return edge, errors
        return None

    def is_right(self, op: Op, table: Table) -> bool:
        """Return whether the op is right with this table."""
        wrong = self.first_wrong(table)
        return wrong is None or wrong[0].op.name != op.name

    def calls(self, op: Op) -> list[Any]:
        """Return the ATen ops that its kernel calls."""
        nodes = self.graph({})[0].graph.nodes
        return list(dict.fromkeys(n.target for n in nodes if n.meta.get("ge_op") == op.name))


def _rule(op: Op, probe: LoweringProbe, table: Table) -> Culprit:
    """Return the wrong decomposition, if the op is right without it."""
    if not probe.is_right(op, {}):
        return Culprit(
            LOWERING, op.type, "its kernel computes other values when it is traced than when it runs"
        )
    listed = [target for target in probe.calls(op) if target in table]
    guilty = next((target for target in listed if not probe.is_right(op, {target: table[target]})), None)
    if guilty is None:
        return Culprit(DECOMPOSITION, f"in {op.type}", "it is right without Inductor's decompositions")
    return Culprit(DECOMPOSITION, str(guilty), f"{op.type} is right if {guilty} is not decomposed")
