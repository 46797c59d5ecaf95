"""Find the smallest set of calls that is right op by op and wrong compiled: recompile graphs and parts of
them until the generated kernel is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from torchair.backend.pipeline.context import Context, Fallbacks
from torchair.backend.pipeline.generate import generate
from torchair.backend.pipeline.plan import context_of
from torchair.compare.base.culprit import Culprit, Judge, LocatedMismatch
from torchair.compare.base.replay_call import CallOutcome, RecordedCall, Values, is_uninitialized
from torchair.compare.base.subgraph import Subgraph, calls_of, neighborhood, part_of
from torchair.compare.base.tolerances import EXACT, Errors
from torchair.core.program import Program
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import written_by
from torchair.fxgraph.layout import root_of
from torchair.fxgraph.placeholders import placeholders, returned

CODE = "generated code"
AROUND = ((0, False), (0, True), (1, False), (1, True), (2, False), (4, False), (8, False), (16, False))
"""Subgraphs around a wrong node: steps before it, and whether they include its users."""
DEFINED = re.compile(r"^(\w*fused\w*) = async_compile\.", re.MULTILINE)
ATEN_OPS = re.compile(r"Original ATen: \[([^\]]*)\]")


@dataclass(frozen=True)
class Recompiler:
    """Compile parts of a graph like the whole graph, and run them on the values of one run."""

    gm: fx.GraphModule
    values: Values
    ctx: Context
    judge: Judge

    def program(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Program:
        """Compile a graph with these fake inputs."""
        ctx = self.ctx
        fallbacks = Fallbacks(without_ir=ctx.fallbacks.without_ir, degradations=ctx.degradations)
        request = replace(ctx.request, static_inputs=(), observe=None)
        info = replace(ctx.info, inputs=list(inputs))
        return generate(gm, context_of(info, ctx.settings, request, fallbacks=fallbacks))

    def errors(self, part: Subgraph) -> dict[fx.Node, Errors]:
        """Return the outputs of a part that are wrong after it is compiled."""
        program = self.program(part.gm, [node.meta["val"] for node in part.inputs])
        recorded = RecordedCall(part.args(self.values), self.ctx.device)
        return self._wrong(recorded.run(program), part.outputs)

    def _wrong(self, outcome: CallOutcome, nodes: Sequence[fx.Node]) -> dict[fx.Node, Errors]:
        if outcome.error:
            return {node: Errors(text=outcome.error) for node in nodes[:1]}
        pairs = zip(nodes, outcome.outputs, strict=True)
        judged = {n: self.judge(value, self.values[n.name]) for n, value in pairs if not is_uninitialized(n)}
        return {node: errors for node, errors in judged.items() if not errors.ok}

    def wrong_in_whole(self, recorded: RecordedCall) -> dict[fx.Node, Errors]:
        """Return all wrong values of the graph compiled with every value as a result."""
        probe = copy_graph(self.gm)
        watched = _lasting(self.gm)
        twins = dict(zip(self.gm.graph.nodes, probe.graph.nodes, strict=True))
        count = len(returned(probe))
        probe.graph.output_node().args = ((*returned(probe), *(twins[node] for node in watched)),)
        program = self.program(probe, [node.meta["val"] for node in placeholders(self.gm)])
        outcome = recorded.run(program)
        writes = {node: place for node, place in _writes(self.gm).items() if not outcome.error}
        seen = [*outcome.outputs[count:], *(outcome.args[place] for place in writes.values())]
        return self._wrong(replace(outcome, outputs=seen), [*watched, *writes])


def _writes(gm: fx.GraphModule) -> dict[fx.Node, int]:
    """Return the last call that overwrites each argument completely."""
    places = {node: place for place, node in enumerate(placeholders(gm))}
    found = {target: n for n in gm.graph.nodes for target in written_by(n) if target in places}
    return {node: places[target] for target, node in found.items()}


def _lasting(gm: fx.GraphModule) -> list[fx.Node]:
    """Return the values that are not overwritten until the end of the graph."""
    written = {root_of(target)[0] for node in gm.graph.nodes for target in written_by(node)}
    calls = [
        n for n in gm.graph.nodes if n.op == "call_function" and isinstance(n.meta.get("val"), torch.Tensor)
    ]
    lasting = [node for node in calls if root_of(node)[0] not in written and not written_by(node)]
    return [node for node in lasting if not is_uninitialized(node)]


def locate_wrong_code(generator: Recompiler, recorded: RecordedCall, program: Program) -> LocatedMismatch:
    """Locate the calls with a wrong compiled form, and the kernel generated for them."""
    wrong = generator.wrong_in_whole(recorded)
    found = _minimize(generator, next(iter(wrong))) if wrong else None
    if found is None:
        found = _bisect(generator)
    if found is None:
        text = "parts of the graph are right when they are compiled separately"
        node, errors = next(iter(wrong.items())) if wrong else (None, EXACT)
        return LocatedMismatch(Culprit(CODE, program.kind, text), node, _target(node), errors, generator.gm)
    part, node, errors = found
    names = ", ".join(call.name for call in part.nodes)
    what = "it is" if len(part.nodes) == 1 else "they are"
    why = f"{names}: {what} right op by op, and wrong compiled by {program.kind}"
    kernel = kernel_of(generator, program, part) if program.kind == "inductor" else ""
    culprit = Culprit(CODE, kernel or program.kind, why)
    return LocatedMismatch(culprit, node, _target(node), errors, generator.gm, part.nodes)


def _target(node: fx.Node | None) -> str:
    return "" if node is None else str(node.target)


Found = tuple[Subgraph, fx.Node, Errors]


def _minimize(generator: Recompiler, node: fx.Node) -> Found | None:
    """Return the node with the fewest calls around it that reproduce the mismatch."""
    seen: list[set[fx.Node]] = []
    for levels, users in AROUND:
        nodes = neighborhood(generator.gm, node, levels, users=users)
        if nodes in seen:
            continue
        seen.append(nodes)
        part = part_of(generator.gm, nodes, None if users else [node])
        if wrong := generator.errors(part):
            return part, *next(iter(wrong.items()))
    return None


def _bisect(generator: Recompiler) -> Found | None:
    """Find the shortest run of calls that reproduces a mismatch that disappears when values are returned."""
    calls = calls_of(generator.gm)

    def wrong(begin: int, end: int) -> tuple[Subgraph, dict[fx.Node, Errors]]:
        part = part_of(generator.gm, calls[begin:end])
        return part, generator.errors(part)

    if not wrong(0, len(calls))[1]:
        return None
    end = _first(1, len(calls), lambda count: bool(wrong(0, count)[1]))
    begin = _first(1, end, lambda count: bool(wrong(end - count, end)[1]))
    part, found = wrong(end - begin, end)
    return (part, *next(iter(found.items()))) if found else None


def _first(low: int, high: int, is_wrong: Callable[[int], bool]) -> int:
    """Return the least number for which `is_wrong` holds; it holds for `high`, and is monotonic."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_wrong(middle) else (middle + 1, high)
    return high


def kernel_of(generator: Recompiler, program: Program, part: Subgraph) -> str:
    """Return the generated kernel of these calls: the first whose ops include theirs.

    Inductor reports the ops of a kernel if nodes have their original names in the model. Lowered nodes do
    not, so the graph is compiled again with nodes that do: its kernels are the same, in the same order.
    """
    named = copy_graph(generator.gm)
    for node in named.graph.nodes:
        if isinstance(node.target, OpOverload):
            node.meta["original_aten"] = node.target
    source = generator.program(named, [node.meta["val"] for node in placeholders(named)]).source
    wanted = {".".join(str(node.target).split(".")[:2]) for node in part.nodes}
    names, renamed, ops = DEFINED.findall(program.source), DEFINED.findall(source), set[str]()
    for line in source.splitlines():
        if listed := ATEN_OPS.search(line):
            ops = {op.strip() for op in listed.group(1).split(",")}
            continue
        kernel = next((name for name in renamed if line.strip().startswith((f"{name}(", f"{name}.run("))), "")
        if kernel and wanted <= ops and len(names) == len(renamed):
            return names[renamed.index(kernel)]
    return ""
