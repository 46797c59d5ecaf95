"""The first op that is lowered wrongly: the same lowering once more, with the value of every op returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.backend.pipeline.context import Context
from torchair.compare.base.culprit import UNSET, Culprit, Judge, LocatedMismatch, node_of
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
class Lowered:
    """How one GE graph was lowered."""

    graph: Graph
    gm: fx.GraphModule  # that the GE graph was made from
    ctx: Context

    def again(self, graph: Graph, table: Table) -> fx.GraphModule:
        """Lower a graph with the same arguments."""
        named = [(node.name, node.meta["val"]) for node in placeholders(self.gm)]
        return lower(graph, named, self.ctx.info.fake_mode, self.ctx.device, table)


def blame_lowering(lowered: Lowered, scene: RecordedCall, judge: Judge) -> LocatedMismatch:
    """The first op whose ATen calls give something else than its kernel."""
    table = lowering_table(lowered.ctx.plan.lowered_for)
    probe = Probe(lowered, scene, scene.edges(lowered.graph), judge)
    wrong = probe.first_wrong(table)
    if wrong is None:
        return LocatedMismatch(
            Culprit(LOWERING, "of the whole graph", "each op is lowered rightly by itself"), graph=lowered.gm
        )
    edge, errors = wrong
    node = node_of(edge.op, lowered.gm)
    nodes = () if node is None else (node,)
    return LocatedMismatch(
        _rule(edge.op, probe, table), node, f"{edge.op.type} ({edge.op.name})", errors, lowered.gm, nodes
    )


@dataclass(frozen=True)
class Probe:
    """The graph with all its values as results, lowered with one table of decompositions or another."""

    lowered: Lowered
    scene: RecordedCall
    edges: Mapping[str, Any]  # what should flow
    judge: Judge

    def graph(self, table: Table) -> tuple[fx.GraphModule, list[Edge]]:
        """The lowered graph, and the edges that it returns."""
        graph = copy_graph(self.lowered.graph)
        silent = (*INPUT_TYPES, OUTPUT_TYPE, "Const", "Assign", UNSET)
        edges = [e for op in graph.ops if op.type not in silent and not op.subgraphs for e in op.outputs]
        edges = [edge for edge in edges if isinstance(edge.meta, torch.Tensor)]
        graph.results = [TensorResult(edge) for edge in edges]
        return self.lowered.again(graph, table), edges

    def first_wrong(self, table: Table) -> tuple[Edge, Errors] | None:
        """The first edge that carries something else than it should, if the graph runs."""
        gm, edges = self.graph(table)
        made = self.scene.run(run_fx(gm))
        for edge, value in zip(edges, made.outputs, strict=not made.error):
            errors = self.judge(value, edge_value(self.edges[edge.tensor], self.scene.device))
            if not errors.ok:
                return edge, errors
        return None

    def is_right(self, op: Op, table: Table) -> bool:
        """Is the op as it should be with this table?"""
        wrong = self.first_wrong(table)
        return wrong is None or wrong[0].op.name != op.name

    def calls(self, op: Op) -> list[Any]:
        """The ATen ops that its kernel calls."""
        nodes = self.graph({})[0].graph.nodes
        return list(dict.fromkeys(n.target for n in nodes if n.meta.get("ge_op") == op.name))


def _rule(op: Op, probe: Probe, table: Table) -> Culprit:
    """The decomposition that is to blame, if the op is right without it."""
    if not probe.is_right(op, {}):
        return Culprit(
            LOWERING, op.type, "its kernel gives something else when it is traced than when it is run"
        )
    listed = [target for target in probe.calls(op) if target in table]
    guilty = next((target for target in listed if not probe.is_right(op, {target: table[target]})), None)
    if guilty is None:
        return Culprit(DECOMPOSITION, f"in {op.type}", "without Inductor's decompositions it is right")
    return Culprit(DECOMPOSITION, str(guilty), f"{op.type} is right where {guilty} stays whole")
