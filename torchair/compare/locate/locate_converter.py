"""Locate the first wrongly converted node: run each call alone, on the values that eager had."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.backend.settings.settings import Settings
from torchair.compare.base.culprit import Culprit, Judge, LocatedMismatch, node_of
from torchair.compare.base.replay_call import (
    RecordedCall,
    ValueRecorder,
    copies,
    edge_value,
    frozen,
    is_uninitialized,
    set_random_state,
)
from torchair.compare.base.subgraph import Subgraph, calls_of, neighborhood, part_of
from torchair.compare.base.tolerances import Errors
from torchair.compare.locate.converter_or_kernel import (
    CONVERTER,
    WrongCall,
    classify,
    converted,
    describe_converter,
    emitted,
)
from torchair.core.errors import first_line
from torchair.core.torch_private.fake.fake_tensors import tree_flatten
from torchair.engine.interpret import interpret
from torchair.fxgraph.effects import flat
from torchair.fxgraph.symbols import is_symbol
from torchair.ge.graph import Graph, Op

FX_NAME = "_fx_tensor_name"
LEVELS = (1, 2, 4, 8)  # numbers of preceding calls with which a node is converted


@dataclass(frozen=True)
class Alone:
    """One call, converted alone and run on given inputs."""

    part: Subgraph
    graph: Graph
    is_taken_apart: bool
    errors: Errors
    right_op: str  # the type of an op with the right result, although the result of the call is wrong
    is_right: Callable[[Graph], bool]


@dataclass(frozen=True)
class Nodes:
    """An FX graph with all its values in one eager run."""

    gm: fx.GraphModule
    run: ValueRecorder
    recorded: RecordedCall
    settings: Settings

    def alone(self, node: fx.Node, judge: Judge) -> Alone | None:
        """Convert a call alone; None if it has no result to compare."""
        part = part_of(
            self.gm, [node], [node, *(user for user in node.users if user.target is operator.getitem)]
        )
        wanted = part.wanted(self.run.values)
        if not part.outputs:
            return None
        fakes = [source.meta["val"] for source in part.inputs]
        graph, report = converted(part.gm, fakes, self.settings)
        inside: list[tuple[str, Any]] = []

        def observe(op: Op, values: Sequence[Any]) -> None:
            inside.extend((op.type, frozen(value)) for value in values if isinstance(value, torch.Tensor))

        if node.name in self.run.random:
            set_random_state(self.run.random[node.name])
        given = copies(part.args(self.run.values))
        results = interpret(graph, given, self.recorded.device, observe)
        errors = judge(results, wanted)
        right = [
            kind
            for kind, value in inside[:-1]
            if kind in emitted(graph) and _is_right(judge, value, wanted[0])
        ]

        def is_right(other: Graph) -> bool:
            made = self.recorded.run(
                lambda args: interpret(other, args, self.recorded.device), part.args(self.run.values)
            )
            return not made.error and _is_right(judge, made.outputs[0], wanted[0])

        return Alone(part, graph, bool(report.decomposed), errors, right[-1] if right else "", is_right)

    def errors(self, part: Subgraph, judge: Judge) -> Errors:
        """Convert some calls together and measure their errors."""
        graph, _ = converted(part.gm, [source.meta["val"] for source in part.inputs], self.settings)
        made = self.recorded.run(
            lambda args: interpret(graph, args, self.recorded.device), part.args(self.run.values)
        )
        return Errors(text=made.error) if made.error else judge(made.outputs, part.wanted(self.run.values))


def _is_right(judge: Judge, value: Any, wanted: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.shape == wanted.shape
        and value.dtype == wanted.dtype
        and judge(value, wanted).ok
    )


def locate_wrong_converter(
    graph: Graph, gm: fx.GraphModule, recorded: RecordedCall, judge: Judge, settings: Settings
) -> LocatedMismatch:
    """Locate the first call that is wrong alone; otherwise the first wrong value in the whole graph."""
    nodes = Nodes(gm, recorded.values(gm), recorded, settings)
    for node, alone in wrong_calls(nodes, judge):
        if isinstance(alone, str):
            return LocatedMismatch(
                Culprit("converter", str(node.target), alone), node, str(node.target), graph=gm, nodes=(node,)
            )
        culprit = _culprit(nodes, node, alone, judge)
        return LocatedMismatch(culprit, node, str(node.target), alone.errors, gm, (node,))
    return _in_context(graph, nodes, judge)


def wrong_calls(nodes: Nodes, judge: Judge) -> Iterator[tuple[fx.Node, Alone | str]]:
    """Yield calls that return wrong numbers when they run alone, or raise, in order."""
    for node in calls_of(nodes.gm):
        if is_uninitialized(node) or not any(
            isinstance(value, torch.Tensor) for value in flat(node.meta.get("val"))
        ):
            continue
        try:
            alone = nodes.alone(node, judge)
        except Exception as error:
            yield node, f"{type(error).__name__}: {first_line(error)}"
            continue
        if alone is not None and not alone.errors.ok:
            yield node, alone


def _culprit(nodes: Nodes, node: fx.Node, alone: Alone, judge: Judge) -> Culprit:
    """Return the converter or kernel; for a decomposed call, that of its first wrong part."""
    if alone.is_taken_apart:
        inner = _parts(nodes, node, alone)
        for part, wrong in wrong_calls(inner, judge) if inner is not None else ():
            if isinstance(wrong, Alone):
                found = _culprit(inner, part, wrong, judge)  # type: ignore[arg-type]
                why = f"{node.target} is decomposed, and its part {part.target} is wrong; {found.why}"
                return Culprit(found.kind, found.name, why)
        return Culprit(
            "decomposition",
            str(node.target),
            "its parts are converted correctly, but do not compute its result",
        )
    return classify(WrongCall(node.target, alone.graph, alone.right_op, alone.is_right))


def _parts(nodes: Nodes, node: fx.Node, alone: Alone) -> Nodes | None:
    """Return the graph of the decomposed call, run on the values of the call."""
    inside = [op.origin.node for op in alone.graph.ops if op.origin is not None and op.origin.top]
    graph = next((n.graph for n in inside if isinstance(n, fx.Node) and n.target is not node.target), None)
    if graph is None or graph.owning_module is None:
        return None
    gm = graph.owning_module
    flat_nodes, _ = tree_flatten((list(node.args), dict(node.kwargs)))
    varying = [n for n in flat_nodes if isinstance(n, fx.Node) and _varies(n.meta.get("val"))]
    recorded = RecordedCall([nodes.run.values[n.name] for n in varying], nodes.recorded.device)
    return Nodes(gm, recorded.values(gm), recorded, nodes.settings)


def _varies(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_symbol(value)


def _in_context(graph: Graph, nodes: Nodes, judge: Judge) -> LocatedMismatch:
    """Explain a mismatch if every call is right alone: a converter that reads the source of its inputs,
    folded views, or an error that grows from op to op.
    """
    found = next(_wrong_values(graph, nodes, judge), None)
    if found is None:
        return LocatedMismatch(
            Culprit("conversion", "of the whole graph", "every single value is right"), graph=nodes.gm
        )
    node, errors = found
    for levels in LEVELS:
        part = part_of(nodes.gm, neighborhood(nodes.gm, node, levels))
        if not nodes.errors(part, judge).ok:
            others = ", ".join(call.name for call in part.nodes if call is not node)
            why = (
                f"it is right alone but wrong after {others}: its converter reads where its inputs come from"
            )
            culprit = Culprit(CONVERTER, describe_converter(node.target), why)
            return LocatedMismatch(culprit, node, str(node.target), errors, nodes.gm, part.nodes)
    why = "each call is right alone and with the calls before it: errors grow from op to op"
    return LocatedMismatch(Culprit("rounding", "", why), node, str(node.target), errors, nodes.gm)


def _wrong_values(graph: Graph, nodes: Nodes, judge: Judge) -> Iterator[tuple[fx.Node, Errors]]:
    """Yield nodes whose values in the whole GE graph are wrong, in order."""
    edges = nodes.recorded.edges(graph)
    for op in graph.ops:
        node = node_of(op, nodes.gm)
        for tensor in op.outputs if node is not None else ():
            name = str(tensor.desc.attrs[FX_NAME].value) if FX_NAME in tensor.desc.attrs else ""
            if node is None or not name.startswith(f"{node.name}-"):
                continue
            value = edge_value(edges[tensor.tensor], nodes.recorded.device)
            wanted = list(flat(nodes.run.values[node.name]))[int(name.rpartition(".")[2])]
            if not (errors := judge(value, wanted)).ok:
                yield node, errors
